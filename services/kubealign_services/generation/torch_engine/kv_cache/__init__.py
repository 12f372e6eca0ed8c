"""Paged KV cache: page allocation, prefix reuse and storage."""
