"""Announcement of a weight version: manifest, acknowledgements, quorum."""
