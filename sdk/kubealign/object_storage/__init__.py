"""Client of object storage: addresses, objects of a prefix, and folders that are published atomically.

Needs the package `obstore` (`pip install kubealign[storage]`), which is imported with `bucket`.
"""
