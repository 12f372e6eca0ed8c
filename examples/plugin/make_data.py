"""Makes the rows of jobs.yaml: every one-digit sum, and demonstrations of which half are wrong."""

import json
import random
from collections.abc import Iterable
from pathlib import Path

DEMONSTRATIONS_PER_SUM = 8


def main() -> None:
    chance = random.Random(1)
    folder = Path(__file__).parent / "data"
    folder.mkdir(exist_ok=True)
    sums = [(f"{a}+{b}=", str(a + b)) for a in range(10) for b in range(10)]
    write(folder / "prompts.jsonl", ({"prompt": prompt, "answer": right} for prompt, right in sums))
    write(
        folder / "demonstrations.jsonl",
        (
            {"prompt": prompt, "response": right if chance.random() < 0.5 else str(chance.randrange(19))}
            for prompt, right in sums
            for _ in range(DEMONSTRATIONS_PER_SUM)
        ),
    )


def write(path: Path, rows: Iterable[dict[str, str]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
