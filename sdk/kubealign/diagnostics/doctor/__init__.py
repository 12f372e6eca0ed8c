"""Diagnosis of this machine or a cluster: missing prerequisites for running jobs, and their remedies."""
