"""Writes the rows of the game: `python make_data.py FOLDER`. Each row is a game with a secret of its own."""

import json
import sys
from pathlib import Path

# All characters of the game, so that the tokenizer knows them.
PROMPT = "0123456789 <>=:"


def write_rows(path: Path, seeds: range) -> None:
    """Write one row for each seed."""
    rows = ({"prompt": PROMPT, "seed": seed} for seed in seeds)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    write_rows(folder / "prompts.jsonl", range(1000))
    write_rows(folder / "held.jsonl", range(100))
