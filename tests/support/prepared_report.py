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
    train = DatasetReport(
        kind=kind,
        source="test",
        rows_read=rows,
        rows_kept=rows,
        dropped=0,
        truncated=0,
        unknown_tokens=0,
        longest_prompt=1,
        longest_response=response,
        longest_sequence=1 + response,
        longest_context_bytes=10,
        columns_left_out=[],
        sources=sources or {},
    )
    return PreparationReport(context=context, train=train, validation=None)
