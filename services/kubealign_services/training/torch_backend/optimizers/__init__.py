"""Optimisers over this rank's shards of the trained weights: AdamW, AdamW with 8-bit moments, and Muon, on
the weights' device or on the host.
"""
