"""Write GSM8K's preference pairs as conversations, and a part of them held out:
`python make_pairs.py PREFERENCES.jsonl --out pairs`.

PREFERENCES.jsonl has the columns prompt, chosen and rejected: a question with a correct and a wrong solution.
"""

import argparse
import json
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

HELD_OUT = 48
#: Characters of a question with the longer one of its solutions; longer pairs are left out.
MAX_CHARACTERS = 700
_SPLIT_SEED = 1


def make_pairs(source: Path, folder: Path) -> None:
    """Write demonstrations, preferences and prompts, and the same held out, into a folder.

    The split depends on the rows alone, so that runs with other seeds hold out the same rows.
    """
    pairs = [json.loads(line) for line in source.read_text().splitlines()]
    pairs = [pair for pair in pairs if _length(pair) <= MAX_CHARACTERS]
    random.Random(_SPLIT_SEED).shuffle(pairs)
    folder.mkdir(parents=True, exist_ok=True)
    for prefix, part in (("held_", pairs[:HELD_OUT]), ("", pairs[HELD_OUT:])):
        _write(folder / f"{prefix}preferences.jsonl", map(_preference, part))
        _write(
            folder / f"{prefix}demonstrations.jsonl",
            ({"messages": _preference(pair)["chosen"]} for pair in part),
        )
        _write(folder / f"{prefix}prompts.jsonl", ({"messages": [_question(pair)]} for pair in part))


def _length(pair: Mapping[str, str]) -> int:
    return len(pair["prompt"]) + max(len(pair["chosen"]), len(pair["rejected"]))


def _question(pair: Mapping[str, str]) -> dict[str, str]:
    return {"role": "user", "content": pair["prompt"]}


def _preference(pair: Mapping[str, str]) -> dict[str, list[dict[str, str]]]:
    return {
        name: [_question(pair), {"role": "assistant", "content": pair[name]}]
        for name in ("chosen", "rejected")
    }


def _write(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def main() -> None:
    parser = argparse.ArgumentParser(description="Write preference pairs as conversations.")
    parser.add_argument("preferences", type=Path, help="JSON Lines with prompt, chosen and rejected")
    parser.add_argument("--out", type=Path, default=Path("pairs"), metavar="FOLDER")
    options = parser.parse_args()
    make_pairs(options.preferences, options.out)


if __name__ == "__main__":
    main()
