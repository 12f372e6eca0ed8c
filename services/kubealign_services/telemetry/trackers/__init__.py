"""Experiment trackers: TensorBoard, Weights & Biases, MLflow, JSON lines and plugins."""
