"""The operator, which reconciles AlignmentJobs into Kubernetes objects."""
