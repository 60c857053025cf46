"""tierserve."""
