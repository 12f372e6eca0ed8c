"""Write prompts that ask for sums of two-digit numbers: `python make_data.py --out data`."""

import argparse
import json
import random
from pathlib import Path

HELD_OUT = 64


def make(seed: int, folder: Path) -> None:
    """Write prompts.jsonl and held.jsonl into a folder."""
    sums = [(first, second) for first in range(10, 100) for second in range(10, 100)]
    random.Random(seed).shuffle(sums)
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in {"held": sums[:HELD_OUT], "prompts": sums[HELD_OUT:]}.items():
        rows = [
            {
                "messages": [
                    {
                        "role": "user",
                        "content": f"What is {first} + {second}? Reply with the number only.",
                    }
                ],
                "answer": str(first + second),
            }
            for first, second in part
        ]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write prompts.jsonl and held.jsonl.")
    parser.add_argument("--out", type=Path, default=Path("data"), metavar="FOLDER")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    make(options.seed, options.out)


if __name__ == "__main__":
    main()
