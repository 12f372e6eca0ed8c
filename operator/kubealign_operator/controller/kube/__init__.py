"""The operator's use of the Kubernetes API: connection, ownership, events, leader election."""
