"""Commands of the driver to a trained model, executed by all of its ranks in one order."""
