"""Measurements: what `tierserve bench` runs."""
