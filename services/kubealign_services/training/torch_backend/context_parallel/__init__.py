"""Context parallelism: ranks that share the tokens of each pack (Jacobs et al. 2023, DeepSpeed Ulysses)."""
