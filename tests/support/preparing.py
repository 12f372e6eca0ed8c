"""Jobs for tests of the preparation: a tiny Llama on characters, and rows in files."""

import json
from pathlib import Path
from typing import Any

from kubealign.spec.job import AlignmentJob

SIZES: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
}
CHARACTERS: dict[str, Any] = {"train": {"characters": {}}}


def from_config(tokenizer: dict[str, Any] = CHARACTERS, **sizes: Any) -> dict[str, Any]:
    return {"config": {"architecture": SIZES | sizes, "tokenizer": tokenizer}}


def job(spec: dict[str, Any]) -> AlignmentJob:
    return AlignmentJob.model_validate({"metadata": {"name": "job"}, "spec": {"maxSteps": 1} | spec})


def sft(data: dict[str, Any], **spec: Any) -> AlignmentJob:
    return job(
        {"algorithm": {"sft": {}}, "policy": {"model": from_config()}, "data": {"demonstrations": data}}
        | spec
    )


def rows(folder: Path, lines: list[dict[str, Any]], name: str = "rows.jsonl") -> dict[str, Any]:
    path = folder / name
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return {"source": {"path": str(path)}}
