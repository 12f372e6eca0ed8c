"""Certificates of a job."""
