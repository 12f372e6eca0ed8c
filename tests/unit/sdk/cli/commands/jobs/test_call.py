"""`kubealign call`: arguments and errors. Calls of real processes: tests/integration/rpc."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import Result

from kubealign.client.records import JobRef, ProcessRecord, ProcessState
from support.memory_backend import MemoryBackend

Run = Callable[..., Result]
Submitted = Callable[..., JobRef]


@pytest.fixture
def ref(site: MemoryBackend, submitted: Submitted) -> JobRef:
    """Start a job with a rollout worker and a driver."""
    ref = submitted("ppo")
    site.status(ref, phase="Running")
    site.staff(
        ref,
        ProcessRecord("rollout-0", "rollout", ProcessState.READY),
        ProcessRecord("driver", "driver", ProcessState.WAITING, message="for rollout-0"),
    )
    return ref


def test_jobs_of_a_cluster_cannot_be_called(run: Run, ref: JobRef) -> None:
    done = run("call", "ppo", "rollout", "Status")
    assert done.exit_code == 1
    assert done.stderr.startswith("call works for jobs of this machine (--local or --runs-dir FOLDER): ")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "give either the METHOD to call or --list"),
        (("Status", "--list"), "give either the METHOD to call or --list"),
        (("Status", "--request", "{}", "--request-file", "f"), "exclude each other"),
        (("Status", "--timeout", "0"), "0"),
    ],
)
def test_invalid_arguments_are_usage_errors(
    run: Run, ref: JobRef, tmp_path: Path, arguments: tuple[str, ...], expected: str
) -> None:
    done = run("call", "ppo", "rollout", *arguments, "--runs-dir", str(tmp_path))
    assert done.exit_code == 2 and expected in done.stderr


def test_errors_name_job_and_processes(site: MemoryBackend, run: Run, ref: JobRef, tmp_path: Path) -> None:
    def error(*arguments: str) -> str:
        done = run("call", *arguments, "--runs-dir", str(tmp_path))
        assert (done.exit_code, done.stdout) == (1, "")
        return done.stderr

    assert error("nobody", "rollout", "Status") == "there is no job nobody in namespace default\n"
    assert error("ppo", "teacher", "Candidates") == (
        "default/ppo has no process teacher: there are rollout-0, driver\n"
    )
    assert error("ppo", "driver", "Progress") == (
        "driver of default/ppo cannot be called, it is Waiting: for rollout-0\n"
    )
    site.status(ref, phase="Suspended", message="stopped at step 3")
    assert error("ppo", "rollout", "--list") == (
        "default/ppo does not run, it is Suspended: stopped at step 3\n"
    )


def test_missing_grpc_names_the_remedy(
    run: Run, ref: JobRef, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "kubealign.client.process_calls.process_client", None)
    done = run("call", "ppo", "rollout", "Status", "--runs-dir", str(tmp_path))
    assert done.exit_code == 1 and done.stderr.endswith("not installed: pip install 'kubealign[services]'\n")


def test_process_names_are_completed(
    site: MemoryBackend, ref: JobRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    from contextlib import asynccontextmanager

    from kubealign.cli import completion, target

    @asynccontextmanager
    async def opened(_: object):  # type: ignore[no-untyped-def]
        yield site

    monkeypatch.setattr(target, "open_backend", opened)

    def completed(incomplete: str, **params: object) -> list[str]:
        return completion.complete_process_names(SimpleNamespace(params=params), incomplete)  # type: ignore[arg-type]

    assert completed("", job="ppo") == ["rollout-0", "driver"]
    assert completed("r", job="ppo") == ["rollout-0"]
    assert completed("", job="nobody") == [] and completed("") == []
