"""What is wrong with the data, a tokenizer or a model, as a person would say it."""


class DataError(ValueError):
    """Data, tokenizer or model cannot be used as the job asks; starting again does not mend it.

    The message names the field, the cause and, where one is known, the remedy.
    """
