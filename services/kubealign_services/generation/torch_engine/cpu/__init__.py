"""Fast forward passes on a CPU: compiled kernels, and linear layers with packed weights."""
