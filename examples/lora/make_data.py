"""Makes the rows of jobs.yaml: prompts of three letters, answers of one letter or of one twice, and pairs."""

import json
import random
from collections.abc import Iterable
from itertools import product
from pathlib import Path

LETTERS = "abcdefgh"


def main() -> None:
    make(1, Path(__file__).parent / "data")


def make(seed: int, folder: Path) -> None:
    """Write all files.

    base: a letter of the prompt. twice: a letter twice. prompts: the prompt and its right answer, the last
    letter twice. preferences: the right answer over another letter twice. held: held-out prompts.
    """
    chance = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    prompts = ["".join(letters) for letters in product(LETTERS, repeat=3) if len(set(letters)) == 3]
    chance.shuffle(prompts)
    held_out, prompts = prompts[:64], prompts[64:]
    write(folder / "base.jsonl", [demonstration(p, chance.choice(p)) for p in prompts * 8])
    write(folder / "twice.jsonl", [demonstration(p, 2 * chance.choice(p)) for p in prompts * 8])
    for name, rows in {"prompts": prompts, "held": held_out}.items():
        write(folder / f"{name}.jsonl", [{"prompt": p, "answer": 2 * p[-1]} for p in rows])
    pairs = [{"prompt": p, "chosen": 2 * p[-1], "rejected": 2 * chance.choice(p[:-1])} for p in prompts * 4]
    write(folder / "preferences.jsonl", pairs)


def demonstration(prompt: str, response: str) -> dict[str, str]:
    return {"prompt": prompt, "response": response}


def write(path: Path, rows: Iterable[dict[str, str]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
