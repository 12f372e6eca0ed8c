"""Training rows of ragged lengths for offline methods."""

import json
import random
from pathlib import Path
from typing import Any

from tests.bench.lengths import tailed
from tests.bench.workload import Workload

ROWS = "rows.jsonl"


def write(workload: Workload, folder: Path, steps: int, rows_per_step: int) -> None:
    """Write a file of rows with `prompt` and `response` (sft), or `prompt`, `chosen` and `rejected` (else).
    The response lengths of each step are long-tailed."""
    draw, lines = random.Random(workload.seed), []
    longest, mean = workload.most_tokens, workload.response_tokens
    for step in range(steps):
        names = ("response",) if workload.method == "sft" else ("chosen", "rejected")
        lengths = {
            name: tailed(steps * index + step, rows_per_step, mean, longest, workload.seed)
            for index, name in enumerate(names)
        }
        for row in range(rows_per_step):
            texts = {name: workload.words(draw, lengths[name][row]) for name in names}
            lines.append({"prompt": workload.words(draw, workload.prompt_tokens), **texts})
    (folder / ROWS).write_text("".join(json.dumps(line) + "\n" for line in lines))


def tokens_of(row: dict[str, Any]) -> int:
    """Return the length of a row's longest sequence, with its end token."""
    responses = [row[name] for name in ("response", "chosen", "rejected") if name in row]
    return len(row["prompt"].split()) + max(len(each.split()) for each in responses) + 1
