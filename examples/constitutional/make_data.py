"""Makes words, and rows that teach a policy to say them, to criticise, to revise and to compare.

python make_data.py --seed 1 --out data
"""

import argparse
import json
import random
from itertools import product
from pathlib import Path
from typing import Any

LETTERS = "abcdefghijkl"
#: Numbers of words for the first policy and of held-out words; the other words are for alignment.
TAUGHT, HELD = 70, 24

# The prompts of jobs.yaml, with answers to imitate.
CRITIQUE = "{prompt}{response} {principle}? "
REVISION = "{prompt}{response} {principle}? {critique} better: "
COMPARISON = "{prompt} A:{first} B:{second} more {principle}: "
PRINCIPLE = "calm"


def taught(word: str, draw: random.Random) -> list[dict[str, Any]]:
    """Return the rows that teach the first policy a word: to say it calmly (`ab.`) and to shout it (`ab!`)
    equally often, and to answer the prompts of jobs.yaml."""
    prompt, calm, loud = f"{word}?", f"{word}.", f"{word}!"
    rows = [(prompt, calm), (prompt, loud)]
    for response, critique in ((calm, "yes"), (loud, "no")):
        filled = {"prompt": prompt, "response": response, "principle": PRINCIPLE, "critique": critique}
        rows += [(CRITIQUE.format(**filled), critique), (REVISION.format(**filled), calm)]
    for first, second, better in ((calm, loud, "A"), (loud, calm, "B")):
        asked = COMPARISON.format(prompt=prompt, first=first, second=second, principle=PRINCIPLE)
        rows.append((asked, better))
    draw.shuffle(rows)
    return [{"prompt": asked, "response": answer} for asked, answer in rows]


def make(seed: int, out: Path) -> None:
    """Write taught.jsonl, prompts.jsonl and held.jsonl."""
    draw = random.Random(seed)
    words = ["".join(letters) for letters in product(LETTERS, repeat=2)]
    draw.shuffle(words)
    held_out, learned, others = words[:HELD], words[HELD : HELD + TAUGHT], words[HELD + TAUGHT :]
    out.mkdir(parents=True, exist_ok=True)
    files = {
        "taught": [row for word in learned for row in taught(word, draw)],
        "prompts": [{"prompt": f"{word}?"} for word in others],
        "held": [{"prompt": f"{word}?"} for word in held_out],
    }
    for name, rows in files.items():
        path = out / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("data"))
    arguments = parser.parse_args()
    make(arguments.seed, arguments.out)


if __name__ == "__main__":
    main()
