"""Makes the rows of jobs.yaml: four letters, to be sorted.

sft.jsonl                          prompt, response: in order in half of them, else reversed
pairs.jsonl, held_pairs.jsonl      prompt, chosen, rejected, chosenRating, rejectedRating: the share of
                                   a response's letters in their right position
singles.jsonl, held_singles.jsonl  prompt, response, label: true for the right order
"""

import itertools
import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

LETTERS = "abcdefgh"


def main() -> None:
    make(1, Path(__file__).parent / "data")


def make(seed: int, folder: Path) -> None:
    """Write all files. The same seed writes the same bytes; no prompt is in two of sft, pairs and held."""
    chance = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    prompts = ["".join(letters) + ":" for letters in itertools.permutations(LETTERS, 4)]
    chance.shuffle(prompts)
    shown, compared, held_out = prompts[:740], prompts[740:1480], prompts[1480:]
    write(folder / "sft.jsonl", (demonstration(prompt, chance) for prompt in shown))
    for name, part in (("", compared), ("held_", held_out)):
        pairs = [pair(prompt, chance) for prompt in part]
        write(folder / f"{name}pairs.jsonl", pairs)
        write(folder / f"{name}singles.jsonl", (single(row, chance) for row in pairs))


def demonstration(prompt: str, chance: random.Random) -> dict[str, Any]:
    letters = sorted(prompt[:4])
    return {"prompt": prompt, "response": "".join(letters if chance.random() < 0.5 else letters[::-1])}


def pair(prompt: str, chance: random.Random) -> dict[str, Any]:
    """Return a pair. The rejected response is reversed, or two neighbours are swapped, with equal odds."""
    right = sorted(prompt[:4])
    wrong = right[::-1]
    if chance.random() < 0.5:
        at = chance.randrange(3)
        wrong = [*right[:at], right[at + 1], right[at], *right[at + 2 :]]
    return {
        "prompt": prompt,
        "chosen": "".join(right),
        "rejected": "".join(wrong),
        "chosenRating": 1.0,
        "rejectedRating": in_place(wrong, right),
    }


def in_place(letters: Sequence[str], right: Sequence[str]) -> float:
    return sum(a == b for a, b in zip(letters, right, strict=True)) / len(right)


def single(row: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    good = chance.random() < 0.5
    return {"prompt": row["prompt"], "response": row["chosen" if good else "rejected"], "label": good}


def write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()
