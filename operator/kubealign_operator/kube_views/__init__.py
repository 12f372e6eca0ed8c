"""Typed, lenient views of the objects that the operator observes."""
