"""Configuration and YAML files -> Kubernetes objects. Needs neither a cluster nor credentials."""
