"""Commands that change jobs: submit, scale, suspend, resume, delete."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from typer.testing import Result

from kubealign.client.records import JobRef, ListQuery
from support.bad_specs import whole_job
from support.memory_backend import MemoryBackend

Run = Callable[..., Result]
Submitted = Callable[..., JobRef]


def names(site: MemoryBackend) -> list[str]:
    return [str(job.ref) for job in asyncio.run(site.list(ListQuery(sort="name"))).jobs]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Write two jobs, the first of which depends on the second."""
    second = whole_job("ppo", {"spec.policy.model": {"job": {"name": "sft"}}})
    path = tmp_path / "jobs.yaml"
    path.write_text(yaml.safe_dump_all([second, whole_job("sft")]))
    return path


def test_jobs_are_submitted_in_dependency_order(site: MemoryBackend, run: Run, file: Path) -> None:
    done = run("submit", str(file), "--set", "spec.seed=7")
    assert (done.exit_code, done.stdout) == (0, "sft: submitted\nppo: submitted\n"), done.output
    job = asyncio.run(site.get(JobRef("default", "ppo")))
    assert job.job.spec.seed == 7
    assert run("submit", str(file)).stderr.endswith(
        "\nthere is a job default/sft already: delete it, or choose another name\n"
    )


def test_dry_run_stores_nothing(site: MemoryBackend, run: Run, file: Path) -> None:
    assert run("submit", str(file), "--dry-run").stdout == "sft: valid (dry run)\nppo: valid (dry run)\n"
    assert names(site) == []


def test_invalid_job_lists_field_errors(site: MemoryBackend, run: Run, file: Path) -> None:
    done = run("submit", str(file), "--set", "ppo:spec.maxSteps=0")
    assert done.exit_code == 3
    assert "ppo: spec.maxSteps: must be at least 1 (it holds 0, from --set" in done.stderr
    assert names(site) == []


def test_namespace_of_a_submitted_job(site: MemoryBackend, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(whole_job("sft")))
    assert run("submit", str(path), "-n", "team-a", "-o", "name").stdout == "alignmentjob.kubealign.dev/sft\n"
    path.write_text(yaml.safe_dump(whole_job("grpo", {"metadata.namespace": "team-b"})))
    assert run("submit", str(path)).exit_code == 0
    assert names(site) == ["team-b/grpo", "team-a/sft"]
    done = run("submit", str(path), "-n", "team-a")
    assert done.exit_code == 2
    assert "grpo has namespace team-b in its file, and -n is team-a" in done.stderr


def test_scale(site: MemoryBackend, run: Run, submitted: Submitted) -> None:
    ref = submitted("ppo")
    assert run("scale", "ppo", "3").stdout == "ppo: 3 rollout workers\n"
    assert asyncio.run(site.get(ref)).job.spec.rollout.replicas == 3
    done = run("scale", "ppo", "2000")
    assert done.exit_code == 3
    assert "spec.rollout.replicas: must be at most 1024 (it holds 2000)" in done.stderr
    submitted("sft")
    assert "has no rollout workers" in run("scale", "sft", "2").stderr
    assert run("scale", "ppo", "many").exit_code == 2
    missing = run("scale", "ppo", "2", "--group", "environment")
    assert missing.exit_code == 1
    assert "has no workers 'environment' to scale; it has rollout, reward-" in missing.stderr


def test_suspend_and_resume(site: MemoryBackend, run: Run, submitted: Submitted) -> None:
    refs = [submitted("ppo"), submitted("sft")]
    assert run("suspend", "ppo", "sft").exit_code == 0
    assert [asyncio.run(site.get(ref)).phase for ref in refs] == ["Suspended", "Suspended"]
    assert run("resume", "sft").stdout == "sft: resuming\n"
    assert [asyncio.run(site.get(ref)).phase for ref in refs] == ["Suspended", "Running"]
    site.status(refs[1], phase="Failed")
    assert "is over" in run("suspend", "sft").stderr


def test_retry_starts_failed_jobs_only(site: MemoryBackend, run: Run, submitted: Submitted) -> None:
    ref = submitted("sft")
    site.status(ref, phase="Succeeded")
    refused = run("retry", "sft")
    assert refused.exit_code == 1
    assert "default/sft is Succeeded: only a job that has failed can be retried" in refused.stderr
    site.status(ref, phase="Failed")
    assert run("retry", "sft").stdout == "sft: retrying\n"
    assert asyncio.run(site.get(ref)).phase == "Starting"


def test_delete_confirms_on_a_terminal_only(
    site: MemoryBackend, run: Run, submitted: Submitted, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted("ppo"), submitted("sft"), submitted("grpo")
    assert run("delete", "sft").stdout == "sft: deleted\n"
    monkeypatch.setattr("kubealign.cli.commands.jobs.lifecycle._is_stdin_terminal", lambda: True)
    prompts = run("delete", "ppo", "grpo", input="n\n")
    assert prompts.exit_code == 1
    assert "Delete ppo (Pending), grpo (Pending), and all their pods?" in prompts.output
    assert names(site) == ["default/grpo", "default/ppo"]
    assert run("delete", "ppo", input="y\n").exit_code == 0
    assert run("delete", "grpo", "--yes").exit_code == 0
    assert names(site) == []


def test_nothing_is_deleted_if_one_job_is_missing(
    site: MemoryBackend, run: Run, submitted: Submitted
) -> None:
    submitted("ppo")
    assert run("delete", "ppo", "nobody").exit_code == 1
    assert names(site) == ["default/ppo"]
