"""The CustomResourceDefinition of AlignmentJobs, generated from the spec's models."""
