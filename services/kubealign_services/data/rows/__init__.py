"""Rows: parsing of source columns into examples."""
