"""A fleet in simulated time: real routing and retention code, modelled engines and links. Pure and deterministic."""
