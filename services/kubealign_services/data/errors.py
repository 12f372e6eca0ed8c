"""Errors in data, tokenizers and models."""


class DataError(ValueError):
    """Data, tokenizer or model cannot be used as the job asks; a restart does not help.

    The message names the field, the cause and, where one is known, the remedy.
    """


class RowError(DataError):
    """A row cannot be used. `row`: its number in the source, from 0; the message counts from 1.

    `problem` follows the row's name in the message: ": column 'a' holds 3, not text".
    """

    def __init__(self, row: int, problem: str) -> None:
        super().__init__(f"row {row + 1}{problem}")
        self.row, self.problem = row, problem
