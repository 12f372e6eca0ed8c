"""Model types that no trainer runs are refused by `kubealign validate`, also in folders of this machine."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kubealign.cli.main import app
from kubealign.spec.model_types import (
    FAMILY_TYPES,
    OTHER_TYPES,
    SUPPORTED_TYPES,
    folder_problem,
    model_type_error,
)

Make = Callable[..., dict[str, Any]]
Write = Callable[..., Path]


def write_config(folder: Path, config: object) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").touch()
    return folder


def test_the_lists_are_sorted_and_disjoint() -> None:
    assert list(FAMILY_TYPES) == sorted(FAMILY_TYPES) and list(OTHER_TYPES) == sorted(OTHER_TYPES)
    assert len(set(SUPPORTED_TYPES)) == len(FAMILY_TYPES) + len(OTHER_TYPES)
    assert all(model_type_error(each) is None for each in SUPPORTED_TYPES)


@pytest.mark.parametrize("kind", ["bloom", "mamba", "t5", "bert", "nonsense"])
def test_a_folder_of_an_unsupported_type_is_an_error(
    kind: str, document: Make, write: Write, tmp_path: Path
) -> None:
    """The path is relative to the job's file."""
    write_config(tmp_path / "model", {"model_type": kind})
    path = write(document("sft", {"spec.policy.model": {"path": "model"}}))
    done = CliRunner().invoke(app, ["validate", str(path)], env={"COLUMNS": "2000"})
    assert done.exit_code == 3
    line = path.read_text().splitlines().index("      path: model") + 1
    assert done.stderr.startswith(f"{path}:{line}: sft: spec.policy.model.path: ")
    assert f"config.json, model_type: '{kind}' is not supported: " in done.stderr
    assert ", ".join(SUPPORTED_TYPES) in done.stderr


@pytest.mark.parametrize(
    ("algorithm", "field", "value"),
    [("rloo", "rollout.routingReplay", True), ("sft", "algorithm.sft.routerLossCoefficient", 0.01)],
)
def test_a_folder_without_known_routers_is_an_error_of_the_fields_that_need_them(
    algorithm: str, field: str, value: object, document: Make, write: Write, tmp_path: Path
) -> None:
    write_config(tmp_path / "dense", {"model_type": "llama"})
    write_config(tmp_path / "mixture", {"model_type": "mixtral"})
    changes = {f"spec.{field}": value}
    path = write(document(algorithm, changes | {"spec.policy.model": {"path": "dense"}}))
    done = CliRunner().invoke(app, ["validate", str(path)], env={"COLUMNS": "2000"})
    assert done.exit_code == 3
    assert f"spec.{field}: the policy is of type llama; the routers of flex_olmo, mixtral" in done.stderr
    for model, these in (("dense", {}), ("mixture", changes)):
        path = write(document(algorithm, these | {"spec.policy.model": {"path": model}}))
        done = CliRunner().invoke(app, ["validate", str(path)])
        assert done.exit_code == 0, done.stderr


def test_a_reward_model_is_checked_too(document: Make, write: Write, tmp_path: Path) -> None:
    write_config(tmp_path / "scorer", {"model_type": "deberta-v2"})
    rewards = [{"name": "liked", "model": {"path": "scorer"}}]
    path = write(document("rloo", {"spec.rewards": rewards}))
    done = CliRunner().invoke(app, ["validate", str(path)])
    assert done.exit_code == 3 and "spec.rewards[0].model.path" in done.stderr


def test_supported_and_absent_folders_are_valid(document: Make, write: Write, tmp_path: Path) -> None:
    write_config(tmp_path / "model", {"model_type": "gemma2"})
    for folder in ("model", "/in/the/image"):
        path = write(document("sft", {"spec.policy.model": {"path": folder}}))
        done = CliRunner().invoke(app, ["validate", str(path)])
        assert done.exit_code == 0, done.stderr


def test_a_configuration_without_weights_can_be_planned(document: Make, write: Write, tmp_path: Path) -> None:
    """Such as that of Nemotron-4, which the plan counts and no trainer runs."""
    (write_config(tmp_path / "model", {"model_type": "nemotron"}) / "model.safetensors").unlink()
    path = write(document("sft", {"spec.policy.model": {"path": "model"}}))
    done = CliRunner().invoke(app, ["validate", str(path)])
    assert done.exit_code == 0, done.stderr
    (tmp_path / "model" / "pytorch_model.bin").touch()
    assert CliRunner().invoke(app, ["validate", str(path)]).exit_code == 3


@pytest.mark.parametrize("text", ["[1]", "{", "\udcff"])
def test_a_config_that_cannot_be_read_is_another_error(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(text.encode(errors="surrogateescape"))
    assert folder_problem(tmp_path) is None
    assert folder_problem(tmp_path / "none") is None


def test_a_config_without_a_type(tmp_path: Path) -> None:
    folder = write_config(tmp_path / "model", {"hidden_size": 8})
    assert str(folder_problem(folder)).startswith("config.json, model_type: None is required: supported are")
