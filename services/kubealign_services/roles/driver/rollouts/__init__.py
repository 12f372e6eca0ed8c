"""Requests for samples, and their assembly into batches: prompts, groups, retries, dynamic sampling,
prefetch.
"""
