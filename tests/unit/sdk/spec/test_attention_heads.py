"""A contextParallel that does not divide a model's attention heads is refused by `kubealign validate`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kubealign.cli.main import app
from kubealign.spec.attention_heads import count_heads

Make = Callable[..., dict[str, Any]]
Write = Callable[..., Path]

TRAINER = {"ranks": 4, "backend": {"torch": {"contextParallel": 4}}}


def write_config(folder: Path, heads: int) -> None:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "num_attention_heads": heads}))
    (folder / "model.safetensors").touch()


@pytest.mark.parametrize(("heads", "exit_code"), [(8, 0), (6, 3)])
def test_the_policy_in_a_folder_of_the_job(
    heads: int, exit_code: int, document: Make, write: Write, tmp_path: Path
) -> None:
    write_config(tmp_path / "model", heads)
    path = write(document("sft", {"spec.policy.model": {"path": "model"}, "spec.trainer": TRAINER}))
    done = CliRunner().invoke(app, ["validate", str(path)], env={"COLUMNS": "2000"})
    assert done.exit_code == exit_code, done.stderr
    if exit_code:
        line = path.read_text().splitlines().index("        contextParallel: 4") + 1
        assert done.stderr.startswith(f"{path}:{line}: sft: spec.trainer.backend.torch.contextParallel: ")
        assert "must divide the model's attention heads (6): write one of 1, 2, 3, 6" in done.stderr


def test_the_critic_that_starts_from_a_reward_model(document: Make, write: Write, tmp_path: Path) -> None:
    write_config(tmp_path / "reward", 6)
    changes = {"spec.rewards.0.model": {"path": "reward"}, "spec.critic": TRAINER}
    path = write(document("ppo", changes))
    done = CliRunner().invoke(app, ["validate", str(path)], env={"COLUMNS": "2000"})
    assert done.exit_code == 3
    assert "spec.critic.backend.torch.contextParallel: must divide the model's attention" in done.stderr


@pytest.mark.parametrize(
    ("config", "heads"),
    [
        ({"num_attention_heads": 8}, 8),
        ({"n_head": 12}, 12),
        ({"text_config": {"num_attention_heads": 4}, "num_attention_heads": 16}, 4),
        ({}, None),
        ({"num_attention_heads": "8"}, None),
        ({"num_attention_heads": 0}, None),
    ],
)
def test_names_of_the_number_of_heads(config: dict[str, Any], heads: int | None) -> None:
    assert count_heads(config) == heads
