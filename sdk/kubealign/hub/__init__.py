"""Publication of results on the Hugging Face hub."""
