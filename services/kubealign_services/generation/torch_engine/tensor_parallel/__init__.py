"""One engine over several processes: each holds a slice of every layer, and all make the same passes."""
