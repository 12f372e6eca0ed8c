"""Data preparation: from the sources and models that a job names to tokenised rows and model folders."""
