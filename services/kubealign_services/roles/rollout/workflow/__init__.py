"""Workflows: conversations of several turns with tools, which yield one sample."""
