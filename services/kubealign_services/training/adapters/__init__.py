"""Low-rank adapters: their matrices, targets, and files in PEFT's layout."""
