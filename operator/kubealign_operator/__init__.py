"""The operator that renders AlignmentJobs into Kubernetes objects."""
