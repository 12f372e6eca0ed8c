"""Sandbox for programs that a policy has written: one that is hostile can neither reach what the worker can,
nor decide the verdict on itself.
"""
