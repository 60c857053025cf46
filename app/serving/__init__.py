"""Thin subclasses of Ray Serve and ray.serve.llm. Nothing outside this package imports Ray."""
