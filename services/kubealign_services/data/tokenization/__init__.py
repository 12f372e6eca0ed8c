"""Tokenisation of examples: tokenizers, chat templates, length filter and Parquet output."""
