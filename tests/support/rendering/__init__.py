"""Jobs, pods and a small model of a cluster, for tests of what the operator decides."""
