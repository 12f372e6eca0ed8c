"""Makes sums of two numbers, some of them solved with the calculator: `python make_data.py FOLDER`.

sft.jsonl holds demonstrations: three of four answer directly, most of them wrongly; one of four
calls the calculator, whose answer is between < and >. prompts.jsonl and held.jsonl hold sums.
"""

import json
import random
import sys
from pathlib import Path
from typing import Any


def make(seed: int, folder: Path) -> None:
    """Write sft.jsonl, prompts.jsonl and held.jsonl."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(seed)
    pairs = [(a, b) for a in range(10, 100) for b in range(10, 100)]
    draw.shuffle(pairs)
    parts = {"sft": pairs[:4000], "prompts": pairs[4000:7000], "held": pairs[7000:7200]}
    for name, chosen in parts.items():
        rows = [_demonstration(a, b, draw) if name == "sft" else _sum(a, b) for a, b in chosen]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")


def _sum(a: int, b: int) -> dict[str, Any]:
    return {"prompt": f"{a}+{b}=", "answer": str(a + b)}


def _demonstration(a: int, b: int, draw: random.Random) -> dict[str, Any]:
    right = a + b
    if draw.random() < 0.25:
        response = f"[{a}+{b}]<{right}>{right}"
    else:
        response = str(right if draw.random() < 0.3 else right + draw.choice([-10, -2, -1, 1, 2, 10]))
    return _sum(a, b) | {"response": response}


if __name__ == "__main__":
    make(int(sys.argv[2]) if len(sys.argv) > 2 else 1, Path(sys.argv[1]))
