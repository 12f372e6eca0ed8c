"""Rows for the recipes of papers, from the files of their data sets.

    python prepare.py spin raw data
    python prepare.py steerlm raw data

README.md lists the files that `raw` must hold.
"""

import argparse
import gzip
import json
import random
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet

#: Ratings of OpenAssistant from 0 to 1, and of HelpSteer from 0 to 4.
OASST_ATTRIBUTES = ("quality", "toxicity", "humor", "creativity")
HELPSTEER_ATTRIBUTES = ("helpfulness", "correctness", "coherence", "complexity", "verbosity")
ATTRIBUTES = OASST_ATTRIBUTES + HELPSTEER_ATTRIBUTES
HIGHEST = 4

ROLES = {"prompter": "user", "assistant": "assistant"}

Row = dict[str, Any]
Message = dict[str, str]


def first_turns(conversations: Iterable[list[Message]], count: int, seed: int) -> list[Row]:
    """Return a random sample of the first turns of conversations.

    `messages` is the user's message, from which `generate` samples; `chosen` is that and the given response.
    """
    turns = [
        [{"role": each["role"], "content": each["content"]} for each in conversation[:2]]
        for conversation in conversations
        if [each["role"] for each in conversation[:2]] == ["user", "assistant"]
    ]
    sample = random.Random(seed).sample(turns, min(count, len(turns)))
    return [{"messages": turn[:1], "chosen": turn} for turn in sample]


def rated_pair(row: Mapping[str, Any]) -> Row:
    """Return a row of HelpSteer as a conversation with all attributes; None where it has no rating."""
    ratings = {name: row.get(name) for name in ATTRIBUTES}
    return {"messages": [_message("user", row["prompt"]), _message("assistant", row["response"])], **ratings}


def rated_messages(tree: Mapping[str, Any]) -> Iterator[Row]:
    """Yield each labelled response of a tree of OpenAssistant with the messages before it.

    Labels from 0 to 1 become whole numbers from 0 to 4.
    """
    for path in _paths(tree["prompt"], []):
        node = path[-1]
        labels = node.get("labels") or {}
        if node["role"] != "assistant" or not any(name in labels for name in OASST_ATTRIBUTES):
            continue
        ratings: dict[str, int | None] = dict.fromkeys(ATTRIBUTES)
        for name in OASST_ATTRIBUTES:
            if name in labels:
                ratings[name] = round(labels[name]["value"] * HIGHEST)
        yield {"messages": _messages(path), **ratings}


def conversations(tree: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the conversations of a tree of OpenAssistant that no further response continues."""
    for path in _paths(tree["prompt"], []):
        continued = any(
            answer["role"] == "assistant"
            for reply in path[-1]["replies"]
            for answer in (reply, *reply["replies"])
        )
        if path[-1]["role"] == "assistant" and not continued:
            yield {"messages": _messages(path)}


def _paths(node: Mapping[str, Any], before: list[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    """Yield the nodes from the root to each node of a tree, the root first."""
    path = [*before, node]
    yield path
    for reply in node["replies"]:
        yield from _paths(reply, path)


def _messages(path: Iterable[Mapping[str, Any]]) -> list[Message]:
    return [_message(ROLES[node["role"]], node["text"]) for node in path]


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def _read_lines(path: Path) -> Iterator[Row]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def _write(path: Path, rows: Iterable[Row]) -> None:
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            count += 1
    print(f"{path}: {count} rows")


def prepare_spin(raw: Path, data: Path, count: int, seed: int) -> None:
    """Write ultrachat-50k.jsonl."""
    files = sorted(raw.glob("ultrachat/data/train_sft-*.parquet"))
    if not files:
        raise SystemExit(
            f"{raw}/ultrachat/data/train_sft-*.parquet: no such file; README.md shows the download"
        )
    messages = (
        row["messages"]
        for file in files
        for row in pyarrow.parquet.read_table(file, columns=["messages"]).to_pylist()
    )
    _write(data / "ultrachat-50k.jsonl", first_turns(messages, count, seed))


def prepare_steerlm(raw: Path, data: Path, seed: int) -> None:
    """Write attributes.jsonl, conversations.jsonl and questions.jsonl."""
    trees = list(_read_lines(raw / "oasst" / "2023-04-12_oasst_all.trees.jsonl.gz"))
    rated = [rated_pair(row) for row in _read_lines(raw / "helpsteer" / "train.jsonl.gz")]
    rated += [row for tree in trees for row in rated_messages(tree)]
    random.Random(seed).shuffle(rated)
    _write(data / "attributes.jsonl", rated)
    _write(data / "conversations.jsonl", (row for tree in trees for row in conversations(tree)))
    asked = dict.fromkeys(row["prompt"] for row in _read_lines(raw / "helpsteer" / "validation.jsonl.gz"))
    _write(data / "questions.jsonl", ({"messages": [_message("user", prompt)]} for prompt in asked))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe", choices=["spin", "steerlm"])
    parser.add_argument("raw", type=Path, help="folder of the downloaded files")
    parser.add_argument("data", type=Path, help="folder of the rows; created if missing")
    parser.add_argument("--count", type=int, default=50_000, help="prompts of spin")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    arguments.data.mkdir(parents=True, exist_ok=True)
    if arguments.recipe == "spin":
        prepare_spin(arguments.raw, arguments.data, arguments.count, arguments.seed)
    else:
        prepare_steerlm(arguments.raw, arguments.data, arguments.seed)


if __name__ == "__main__":
    main()
