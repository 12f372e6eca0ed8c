"""Makes the rows of jobs.yaml: words of vowels and consonants, some with ratings by two attributes."""

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

VOWELS, CONSONANTS = "aeiou", "bdgkmnst"
RATED, PLAIN, PROMPTS = 1200, 2400, 40
#: Share of the rated rows in which one rating is missing.
UNKNOWN = 0.2


def main() -> None:
    make(1, Path(__file__).parent / "data")


def make(seed: int, folder: Path) -> None:
    """Write ratings.jsonl, held_ratings.jsonl, plain.jsonl and prompts.jsonl."""
    chance = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "ratings.jsonl", (rated(chance, UNKNOWN) for _ in range(RATED)))
    write(folder / "held_ratings.jsonl", (rated(chance, 0.0) for _ in range(200)))
    write(folder / "plain.jsonl", (plain(chance) for _ in range(PLAIN)))
    write(folder / "prompts.jsonl", ({"prompt": prompt(chance)} for _ in range(PROMPTS)))


def prompt(chance: random.Random) -> str:
    """Return a random prompt; the answers' attributes do not depend on it."""
    return "".join(chance.choices(CONSONANTS, k=3))


def plain(chance: random.Random) -> dict[str, Any]:
    """Return a prompt with a word of 0 to 4 vowels and 0 to 4 consonants, at least one letter in all."""
    vowels, consonants = 0, 0
    while vowels + consonants == 0:
        vowels, consonants = chance.randint(0, 4), chance.randint(0, 4)
    letters = [*chance.choices(VOWELS, k=vowels), *chance.choices(CONSONANTS, k=consonants)]
    chance.shuffle(letters)
    return {"prompt": prompt(chance), "response": "".join(letters)}


def rated(chance: random.Random, unknown: float) -> dict[str, Any]:
    """Return such a row with its ratings, from 0 to 4: the numbers of vowels and consonants. One of the two
    may be unknown (null)."""
    row = plain(chance)
    counts: dict[str, int | None] = {
        "vowels": sum(letter in VOWELS for letter in row["response"]),
        "consonants": sum(letter in CONSONANTS for letter in row["response"]),
    }
    if chance.random() < unknown:
        counts[chance.choice(list(counts))] = None
    return row | counts


def write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
