"""Backend of a cluster, over the Kubernetes API and the dashboard's REST API."""
