"""Sources of batches: rollouts, data set rows, and recorded batches."""
