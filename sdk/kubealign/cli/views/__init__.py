"""Renderables of the command output. Pure."""
