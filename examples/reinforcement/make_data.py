"""Makes the rows of jobs.yaml: prompts of two letters, of which the last is one of four; and, for the
initial model of all jobs, responses of random letters."""

import json
import random
from collections.abc import Iterable
from pathlib import Path

FIRST, LAST = "abcdefghijklmnop", "cgkp"
RESPONSES, LENGTH = 16, 4


def main() -> None:
    chance = random.Random(1)
    folder = Path(__file__).parent / "data"
    folder.mkdir(exist_ok=True)
    prompts = [first + last for first in FIRST for last in LAST]
    write(folder / "prompts.jsonl", ({"prompt": prompt} for prompt in prompts))
    write(
        folder / "letters.jsonl",
        (
            {"prompt": prompt, "response": "".join(chance.choices(FIRST, k=chance.randint(1, LENGTH)))}
            for prompt in prompts
            for _ in range(RESPONSES)
        ),
    )


def write(path: Path, rows: Iterable[dict[str, str]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
