"""A language model as a judge: its questions, and the reading of its answers."""
