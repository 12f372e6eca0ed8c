"""Files of models: Hugging Face folders, heads, and shard files with checksums."""
