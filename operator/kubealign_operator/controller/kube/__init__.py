"""Access to the Kubernetes API: calls, watches, events, leader election."""
