"""Preparation reports for rows created by a test."""

from kubealign_services.data.prepared import DatasetReport, PreparationReport


def report(
    rows: int,
    context: int | None,
    kind: str = "prompts",
    response: int = 0,
    sources: dict[str, int] | None = None,
) -> PreparationReport:
    """Return the report of `rows` rows with prompts of one token and responses of `response` tokens.

    sources: rows of each source of a mixture."""
    train = _rows(kind, rows, 1, response, 10, sources or {})
    return PreparationReport(context=context, train=train, validation=None)


def report_of_row(
    prompt: int, response: int = 0, context_bytes: int = 0, kind: str = "prompts"
) -> PreparationReport:
    """Return the report of one row, with a prompt and a response of so many tokens, in an unlimited context.

    context_bytes: bytes of the prompt and the columns of the row.
    """
    return PreparationReport(
        context=None, train=_rows(kind, 1, prompt, response, context_bytes, {}), validation=None
    )


def _rows(
    kind: str, count: int, prompt: int, response: int, context_bytes: int, sources: dict[str, int]
) -> DatasetReport:
    return DatasetReport(
        kind=kind,
        source="test",
        rows_read=count,
        rows_kept=count,
        dropped=0,
        truncated=0,
        unknown_tokens=0,
        longest_prompt=prompt,
        longest_response=response,
        longest_sequence=prompt + response,
        longest_context_bytes=context_bytes,
        columns_left_out=[],
        sources=sources,
    )
