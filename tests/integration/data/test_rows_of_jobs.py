"""Multi-turn chats are learned; samples of the result become rows; another job learns from those."""

import json
from pathlib import Path
from typing import Any

import pytest

from kubealign_services.data.collate import collate
from kubealign_services.data.prepared import load_prepared
from support.running import RunningJobs
from support.tiny_jobs import ARCHITECTURE, write_jobs

pytestmark = pytest.mark.timeout(420)

MODEL = {
    "config": {
        "architecture": ARCHITECTURE | {"max_position_embeddings": 160},
        "tokenizer": {"train": {"characters": {}}},
    }
}
STEPS = 10


def said(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def document(name: str, algorithm: dict[str, Any], model: Any, data: Any, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "kubealign.dev/v1alpha1",
        "kind": "AlignmentJob",
        "metadata": {"name": name},
        "spec": {"algorithm": algorithm, "policy": {"model": model}, "data": data} | spec,
    }


def write_rows(path: Path, rows: list[dict[str, Any]]) -> dict[str, Any]:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"path": str(path)}


def jobs(folder: Path) -> Path:
    """Return three jobs in an order in which they cannot run. The chats answer each letter with the same
    letter, in two turns."""
    letters = "abcdefgh"
    chats = [
        [said("user", a), said("assistant", a), said("user", b), said("assistant", b)]
        for a in letters
        for b in letters
    ]
    turns = {
        "source": write_rows(folder / "chats.jsonl", [{"messages": chat} for chat in chats]),
        "format": {"chat": {"turns": "All"}},
    }
    asked = {
        "source": write_rows(folder / "asked.jsonl", [{"messages": [said("user", a)]} for a in letters]),
        "format": {"chat": {}},
        "shuffle": False,
        "values": {"mood": 3.0},
        "template": "{prompt}{prompt}",
    }
    again = {"source": {"job": {"name": "samples"}}, "format": {"chat": {}}}
    learned = {"job": {"name": "chat"}}
    return write_jobs(
        folder,
        document(
            "again",
            {"sft": {"rowsPerStep": 8}},
            learned,
            {"demonstrations": again},
            maxSteps=2,
            validation={"data": {"demonstrations": again}, "atStart": True},
        ),
        document(
            "samples",
            {"generate": {"promptsPerStep": 4, "samplesPerPrompt": 2}},
            learned,
            {"prompts": asked},
            maxSteps=100,
            rollout={"sampling": {"maxTokens": 3}},
        ),
        document(
            "chat",
            {"sft": {"rowsPerStep": 16}},
            MODEL,
            {"demonstrations": turns},
            maxSteps=STEPS,
            trainer={"optimizer": {"adamW": {"learningRate": 1.0e-2}}},
        ),
    )


def test_chats_to_samples_to_rows(tmp_path: Path) -> None:
    with RunningJobs(jobs(tmp_path), tmp_path / "runs") as run:
        assert run.end(400) == 0, run.output[-4000:]
        losses = [figures["sft/loss"] for _, figures in sorted(run.steps("chat").items())]
        result = (run.folder("samples") / "result" / "data.jsonl").read_text().splitlines()
        chat, again = load_prepared(run.folder("chat")), load_prepared(run.folder("again"))
        measured = [figures for figures in run.metrics("again") if "val/loss" in figures]
        steps = run.steps("again")
    # Half of the learned tokens end a turn, and those are learned quickly.
    assert losses[-1] < losses[0] / 2
    batch = collate(chat.train[:1], ["a"], "demonstrations")
    learned = [
        t for t, bit in zip(batch.tokens.tolist(), batch.token("loss_mask").tolist(), strict=True) if bit
    ]
    assert chat.tokenizer.decode(learned) == "a<eos>a<eos>"
    rows = [json.loads(line) for line in result]
    assert len(rows) == 16 == len(again.train)
    for index, row in enumerate(rows):
        letter = "abcdefgh"[index // 2]
        assert row["messages"][:-1] == [said("user", letter * 2)] and row["mood"] == 3
        prepared = again.train[index]
        assert prepared.prompt_text == f"User:\n{letter * 2}\n\nAssistant:\n"
        assert prepared.response_tokens is not None
        assert again.tokenizer.decode(prepared.response_tokens[:-1]) == row["messages"][-1]["content"]
    assert measured and again.validation is not None and len(again.validation) == 16
    # The validation at the start is reported by the step after it.
    assert steps[1]["seconds/validation"] > 0 and "seconds/validation" not in steps[2]
