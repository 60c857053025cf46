"""Instance plans compared for a model, a context length and a load."""
