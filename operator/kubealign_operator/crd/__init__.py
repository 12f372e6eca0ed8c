"""The CustomResourceDefinition of AlignmentJobs, made from the spec's models."""
