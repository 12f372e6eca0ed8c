"""Write products of two-digit numbers, a few of them with a call of `multiply`:
`python make_products.py --out products`."""

import argparse
import json
import random
from pathlib import Path
from typing import Any

HELD_OUT, DEMONSTRATIONS = 64, 256
_SPLIT_SEED = 1


def make_products(folder: Path) -> None:
    """Write demonstrations.jsonl, prompts.jsonl and held.jsonl into a folder."""
    products = [(first, second) for first in range(11, 100) for second in range(11, 100)]
    random.Random(_SPLIT_SEED).shuffle(products)
    held, products = products[:HELD_OUT], products[HELD_OUT:]
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "held": map(_prompt, held),
        "demonstrations": map(_demonstration, products[:DEMONSTRATIONS]),
        "prompts": map(_prompt, products[DEMONSTRATIONS:]),
    }
    for name, rows in files.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def _prompt(product: tuple[int, int]) -> dict[str, Any]:
    first, second = product
    return {
        "messages": [{"role": "user", "content": f"What is {first} times {second}?"}],
        "answer": str(first * second),
    }


def _demonstration(product: tuple[int, int]) -> dict[str, Any]:
    first, second = product
    row = _prompt(product)
    call = {"name": "multiply", "arguments": {"a": first, "b": second}}
    row["messages"] += [
        {"role": "assistant", "tool_calls": [{"type": "function", "function": call}]},
        {"role": "tool", "content": row["answer"]},
        {"role": "assistant", "content": row["answer"]},
    ]
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description="Write demonstrations, prompts and held-out prompts.")
    parser.add_argument("--out", type=Path, default=Path("products"), metavar="FOLDER")
    make_products(parser.parse_args().out)


if __name__ == "__main__":
    main()
