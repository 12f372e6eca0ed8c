"""Access rights in a job: certificates of its roles, and their permissions on NATS and Redis."""
