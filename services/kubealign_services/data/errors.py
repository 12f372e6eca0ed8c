"""Errors in data, tokenizers and models."""


class DataError(ValueError):
    """Data, tokenizer or model cannot be used as the job asks; a restart does not help.

    The message names the field, the cause and, where one is known, the remedy.
    """
