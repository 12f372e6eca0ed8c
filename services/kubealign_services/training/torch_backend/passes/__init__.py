"""Forward and backward passes over microbatches, and the cache of forward passes."""
