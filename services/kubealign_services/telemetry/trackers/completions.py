"""Table of sampled responses, as trackers show it."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

#: Name of the table in every tracker.
TABLE = "completions"


def completion_rows(step: int, fence: int, samples: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one row per sample, all with the same columns in the same order.

    Columns: step, fence, purpose (train, validation or validation/SET), prompt, completion, reward (null
    where a sample has several scores but no total), reward/NAME for each source (null where it does not
    apply), truncated, weight_version, group.

    Args:
        samples: Samples in the form of the read model (`ReadModelWriter.add_sample`).
    """
    sources = sorted({name for sample in samples for name in sample["rewards"]})
    return [
        {
            "step": step,
            "fence": fence,
            "purpose": sample["purpose"],
            "prompt": sample["prompt"],
            "completion": sample["response"],
            "reward": sample["reward"],
            **{f"reward/{name}": sample["rewards"].get(name) for name in sources},
            "truncated": sample["truncated"],
            "weight_version": sample["weight_version"],
            "group": sample["group_id"],
        }
        for sample in samples
    ]


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as CSV with a header."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def to_markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as a Markdown table; a text of several lines stays in one cell."""
    names = list(rows[0])
    lines = [names, ["---"] * len(names)]
    lines += [[_markdown_cell(row[name]) for name in names] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _markdown_cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    escaped = str(value).replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")
    return escaped.replace("\r\n", "<br>").replace("\n", "<br>")
