"""Verification of received weights: checksums and the canary sequence."""
