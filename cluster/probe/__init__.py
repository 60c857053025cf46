"""What runs inside the cluster to prove the shared cache: requests to chosen replicas, sweep, dialogue."""
