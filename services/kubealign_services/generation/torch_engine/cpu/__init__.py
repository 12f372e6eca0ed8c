"""What makes a pass quick on a CPU: compiled kernels, and products with packed weights."""
