"""The model and its weights, and the runners that execute its forward passes."""
