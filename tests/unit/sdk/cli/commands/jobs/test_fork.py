"""`kubealign fork` against a backend: submitted document, output and refusals."""

import asyncio
import json
from collections.abc import Callable

import pytest
from typer.testing import Result

from kubealign.cli.exit_codes import CliExitCode
from kubealign.client.async_client import AsyncAlignmentClient
from kubealign.client.errors import JobInvalid, JobNotFound
from kubealign.client.records import JobRef
from support.memory_backend import MemoryBackend

Run = Callable[..., Result]
_RATE = "spec.trainer.optimizer.adamW.learningRate"
_CHANGE = {"field": _RATE, "before": None, "now": 1e-6}


@pytest.fixture(autouse=True)
def parent(submitted: Callable[..., JobRef]) -> JobRef:
    return submitted("sft", "team")


def _source(site: MemoryBackend) -> object:
    record = asyncio.run(site.get(JobRef("team", "child")))
    return record.resource["spec"]["checkpoint"]["from"]


def test_the_fork_is_submitted_and_described(run: Run, site: MemoryBackend) -> None:
    result = run("fork", "sft", "--at", "4", "--name", "child", "--set", f"{_RATE}=1e-6", "-n", "team")
    assert result.exit_code == 0, result.output
    assert result.output.splitlines() == [
        "child: submitted, from the checkpoint of step 4 of sft; its first step is 5",
        f"  {_RATE} was null, is 1e-06",
    ]
    assert _source(site) == {"job": {"name": "sft"}, "step": 4}
    described = run("describe", "child", "-n", "team").output
    assert "Starts from" in described
    assert "sft, step 4" in described
    assert f"{_RATE} was null, is 1e-06" in described


def test_a_dry_run_prints_the_changes_and_submits_nothing(run: Run, site: MemoryBackend) -> None:
    arguments = ("fork", "sft", "--at", "4", "--name", "child", "--set", f"{_RATE}=1e-6", "-n", "team")
    result = run(*arguments, "--dry-run", "-o", "json")
    assert json.loads(result.output) == {
        "name": "child",
        "parent": "sft",
        "step": 4,
        "firstStep": 5,
        "changes": [_CHANGE],
    }
    assert "child: valid (dry run), from" in run(*arguments, "--dry-run").output
    with pytest.raises(JobNotFound):
        _source(site)


def test_fields_that_the_checkpoint_does_not_fit_are_refused(run: Run, site: MemoryBackend) -> None:
    result = run("fork", "sft", "--at", "4", "--name", "child", "--set", "spec.seed=7", "-n", "team")
    assert result.exit_code == CliExitCode.INVALID_JOB
    assert "spec.seed" in result.output
    assert "must be 1, as in sft: the order of the data follows from the seed" in result.output
    with pytest.raises(JobNotFound):
        _source(site)


def test_the_client_forks_too(site: MemoryBackend) -> None:
    async def fork() -> None:
        client = AsyncAlignmentClient(site)
        job = await client.fork("sft", 4, "child", [f"{_RATE}=1e-6"], "team")
        assert job.name == "child"
        with pytest.raises(JobInvalid) as refusal:
            await client.fork("sft", 4, "other", ["spec.trainer.ranks=2"], "team")
        assert [error.path for error in refusal.value.errors] == ["spec.trainer.ranks"]

    asyncio.run(fork())
    assert _source(site) == {"job": {"name": "sft"}, "step": 4}
