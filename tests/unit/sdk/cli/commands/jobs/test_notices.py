"""Warnings and notes about valid jobs, printed by every command that starts the jobs of a file."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from typer.testing import Result

from support.bad_specs import whole_job
from support.memory_backend import MemoryBackend

Run = Callable[..., Result]

PRECISION_MIX = {"spec.rollout.engine.torch.precision": "BFloat16"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Write two jobs with notices, the first of which depends on the second, and one without."""
    second = whole_job("ppo", {"spec.policy.model": {"job": {"name": "grpo"}}})
    path = tmp_path / "jobs.yaml"
    path.write_text(yaml.safe_dump_all([second, whole_job("grpo", PRECISION_MIX), whole_job("sft")]))
    return path


@pytest.mark.parametrize("command", ["submit", "run"])
def test_notices_are_those_of_validate(site: MemoryBackend, run: Run, file: Path, command: str) -> None:
    validated = run("validate", str(file)).stderr
    assert re.findall(r"jobs.yaml: (\w+): (\w+): ", validated) == [
        ("ppo", "note"),
        ("grpo", "note"),
        ("grpo", "warning"),
    ]
    done = run(command, str(file), "--dry-run")
    assert (done.exit_code, done.stderr) == (0, validated)


def test_notices_are_printed_before_the_jobs_are_stored(site: MemoryBackend, run: Run, file: Path) -> None:
    validated = run("validate", str(file)).stderr
    submitted = run("submit", str(file), "-o", "name")
    assert submitted.stderr == validated and "grpo" in submitted.stdout and "warning" not in submitted.stdout
    assert run("submit", str(file)).stderr.startswith(validated)  # fails, because the jobs exist


def test_invalid_jobs_have_no_notices(site: MemoryBackend, run: Run, file: Path) -> None:
    for command in ("submit", "run"):
        done = run(command, str(file), "--set", "sft:spec.maxSteps=0", "--dry-run")
        assert done.exit_code == 3 and "warning" not in done.stderr
