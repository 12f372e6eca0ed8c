"""Admission of jobs by Kueue (https://kueue.sigs.k8s.io)."""
