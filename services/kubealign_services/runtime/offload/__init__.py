"""Offloading of accelerator memory and the lock of a shared accelerator."""
