"""Watches jobs and pods, asks `render` what should be, and makes it so."""
