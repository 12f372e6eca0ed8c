"""Parsers of tool calls in the text of a turn, one per format of the models."""
