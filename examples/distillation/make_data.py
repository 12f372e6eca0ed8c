"""Makes the rows of jobs.yaml: one-digit sums whose demonstrations are often wrong.

many.jsonl   prompt, response   every sum twenty times: a right answer in three of five, else any number
few.jsonl    prompt, response   every sum once, with the same probabilities
sums.jsonl   prompt, answer     every sum, for validation
"""

import json
import random
from collections.abc import Iterable
from pathlib import Path

DEMONSTRATIONS = 20


def main() -> None:
    make(1, Path(__file__).parent / "data")


def make(seed: int, folder: Path) -> None:
    """Write all files. The same seed writes the same bytes."""
    chance = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    sums = [(f"{a}+{b}=", str(a + b)) for a in range(10) for b in range(10)]

    def demonstrated(times: int) -> list[dict[str, str]]:
        return [
            {"prompt": prompt, "response": right if chance.random() < 0.6 else str(chance.randrange(19))}
            for prompt, right in sums
            for _ in range(times)
        ]

    write(folder / "many.jsonl", demonstrated(DEMONSTRATIONS))
    write(folder / "few.jsonl", demonstrated(1))
    write(folder / "sums.jsonl", ({"prompt": prompt, "answer": right} for prompt, right in sums))


def write(path: Path, rows: Iterable[dict[str, str]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
