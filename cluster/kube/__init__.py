"""The Kubernetes API, as little of it as is needed: server-side apply, inventories, waits."""
