"""Makes words of three letters out of abcd.

The wanted response to a prompt such as `bda>` is its last letter, three times. A judge counts the letter a in
a word: the answer to `bda=` is `1`.

    python make_data.py --seed 1 --out DIR

writes

    start.jsonl           prompt, response   writing, a quarter as wanted, the rest random words; judging
    demonstrations.jsonl  prompt, response   48 prompts with the wanted responses
    prompts.jsonl         prompt             the same prompts
    held.jsonl            prompt             the other 16
"""

import argparse
import json
import random
from collections.abc import Iterable
from itertools import product
from pathlib import Path

LETTERS = "abcd"
WORDS = ["".join(letters) for letters in product(LETTERS, repeat=3)]
HELD = 16
WRITTEN, JUDGED = 2000, 4000


def wanted(prompt: str) -> str:
    """Return the letter before the mark, three times."""
    return prompt[-2] * 3


def written(prompts: list[str], draw: random.Random) -> dict[str, str]:
    prompt = draw.choice(prompts)
    return {"prompt": prompt, "response": wanted(prompt) if draw.random() < 0.25 else draw.choice(WORDS)}


def judged(draw: random.Random) -> dict[str, str]:
    word = draw.choice(WORDS)
    return {"prompt": f"{word}=", "response": str(word.count("a"))}


def make(seed: int, folder: Path) -> None:
    """Write all files. The same seed writes the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(seed)
    prompts = [f"{word}>" for word in draw.sample(WORDS, len(WORDS))]
    held_out, prompts = prompts[:HELD], prompts[HELD:]
    start = [written(prompts, draw) for _ in range(WRITTEN)] + [judged(draw) for _ in range(JUDGED)]
    draw.shuffle(start)
    _write(folder / "start.jsonl", start)
    _write(
        folder / "demonstrations.jsonl",
        ({"prompt": prompt, "response": wanted(prompt)} for prompt in prompts),
    )
    _write(folder / "prompts.jsonl", ({"prompt": prompt} for prompt in prompts))
    _write(folder / "held.jsonl", ({"prompt": prompt} for prompt in held_out))


def _write(path: Path, rows: Iterable[dict[str, str]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    make(given.seed, given.out)
