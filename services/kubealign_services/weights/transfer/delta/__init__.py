"""Delta encoding: a weight version as its difference from the version before."""
