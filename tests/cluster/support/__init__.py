"""A real Kubernetes on one machine, for tests: built from Go modules, started without Docker."""
