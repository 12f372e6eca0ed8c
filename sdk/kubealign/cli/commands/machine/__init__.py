"""Commands that run on this machine or examine it."""
