"""Target selection, exit codes, terminal output and completion of the commands."""

import asyncio
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from typer.testing import Result

from kubealign.cli.target import CommandTarget, open_backend
from kubealign.cli.terminal import escape_control
from kubealign.cli.views.durations import format_age, format_duration
from kubealign.client.errors import KubealignError, Unavailable
from kubealign.client.records import JobRef
from support.memory_backend import MemoryBackend

Run = Callable[..., Result]
Submitted = Callable[..., JobRef]


def test_target_selection_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBEALIGN_RUNS_DIR", raising=False)
    assert CommandTarget().runs_folder is None
    assert CommandTarget(local=True).runs_folder == Path("runs")
    assert CommandTarget(runs_dir=Path("a")).runs_folder == Path("a")
    monkeypatch.setenv("KUBEALIGN_RUNS_DIR", "b")
    assert CommandTarget().runs_folder == CommandTarget(local=True).runs_folder == Path("b")
    assert CommandTarget(runs_dir=Path("a")).runs_folder == Path("a")
    assert CommandTarget(context="c").runs_folder is None
    with pytest.raises(typer.BadParameter, match="remove one"):
        CommandTarget(local=True, context="c").runs_folder  # noqa: B018


def test_missing_cluster_names_the_local_options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("KUBEALIGN_RUNS_DIR", "KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))

    async def ask() -> None:
        async with open_backend(CommandTarget()):
            raise AssertionError("there is no cluster")

    with pytest.raises(Unavailable, match="add --local or --runs-dir FOLDER"):
        asyncio.run(ask())


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "0s"),
        (119, "119s"),
        (120, "2m"),
        (200, "3m20s"),
        (3 * 3600 - 1, "179m"),
        (5 * 3600 + 720, "5h12m"),
        (30 * 3600, "30h"),
        (76 * 3600, "3d4h"),
        (90 * 86_400, "90d"),
        (3 * 365 * 86_400 + 40 * 86_400, "3y40d"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_ages() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert (format_age(now - timedelta(hours=1), now), format_age(None)) == ("60m", "-")


def test_control_characters_are_escaped() -> None:
    assert escape_control("a\tb\nc \x1b[2J\x9b31m\r\x7f") == "a\tb\nc \\x1b[2J\\x9b31m\\x0d\\x7f"


@pytest.mark.parametrize("error", [KubealignError("it is so"), Unavailable("it is so")])
def test_backend_errors_are_one_line(site: MemoryBackend, run: Run, error: KubealignError) -> None:
    site.failing = error
    for command in (
        ["list"],
        ["get", "a"],
        ["logs", "a"],
        ["delete", "a", "-y"],
        ["top", "a"],
        ["wait", "a"],
    ):
        done = run(*command)
        assert (done.exit_code, done.stdout, done.stderr) == (1, "", "it is so\n"), command


def test_interrupt_exits_with_its_code(site: MemoryBackend, run: Run, submitted: Submitted) -> None:
    submitted("ppo")

    async def interrupted(ref: JobRef) -> None:
        raise KeyboardInterrupt

    site.get = interrupted  # type: ignore[method-assign,assignment]
    assert run("get", "ppo").exit_code == 130


def on_a_terminal(*arguments: str, **environment: str) -> str:
    """Return the output of the command on a terminal of 60 columns."""
    program = (
        "import asyncio, sys\n"
        "from contextlib import asynccontextmanager\n"
        "from kubealign.cli import command\n"
        "from kubealign.cli.main import app\n"
        "from support.bad_specs import whole_job\n"
        "from support.memory_backend import MemoryBackend\n"
        "site = MemoryBackend()\n"
        "ref = asyncio.run(site.create(whole_job('ppo'))).ref\n"
        "site.status(ref, phase='Failed', message='word ' * 40)\n"
        "@asynccontextmanager\n"
        "async def open_backend(target):\n"
        "    yield site\n"
        "command.open_backend = open_backend\n"
        "app()\n"
    )
    master, slave = pty.openpty()
    variables = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    variables |= {"PYTHONPATH": str(Path(__file__).parents[3]), "TERM": "xterm-256color", "COLUMNS": "60"}
    started = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=variables | environment,
    )
    os.close(slave)
    written = b""
    try:
        while chunk := os.read(master, 65_536):
            written += chunk
    except OSError:
        # Reading a terminal whose writers are gone raises OSError.
        pass
    finally:
        os.close(master)
        started.wait(30)
    return written.decode()


@pytest.mark.slow
def test_colours_and_wrapping_on_a_terminal() -> None:
    text = on_a_terminal("list")
    assert "\x1b[1;31mFailed" in text
    assert text.count("word") == 40 and len(text.splitlines()) > 5
    for uncoloured in (on_a_terminal("list", "--no-color"), on_a_terminal("list", NO_COLOR="1")):
        assert "\x1b" not in uncoloured and "Failed" in uncoloured


def test_kubectl_plugin(run: Run) -> None:
    plugin = Path(sys.executable).with_name("kubectl-align")
    done = subprocess.run([plugin, "list", "-h"], capture_output=True, text=True, timeout=60, check=True)
    assert "Usage: kubectl align list [OPTIONS]" in done.stdout
    completed = Path(sys.executable).with_name("kubectl_complete-align")
    done = subprocess.run([completed, "des"], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "describe\n:4\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(run: Run, shell: str) -> None:
    done = run("completion", shell)
    assert done.exit_code == 0
    assert f"_KUBEALIGN_COMPLETE=complete_{shell}" in done.stdout
    assert run("completion", "csh").exit_code == 2


def test_job_names_are_completed(
    site: MemoryBackend, submitted: Submitted, monkeypatch: pytest.MonkeyPatch
) -> None:
    from contextlib import asynccontextmanager

    from kubealign.cli import completion, target

    submitted("ppo"), submitted("grpo"), submitted("sft", namespace="team-a")

    @asynccontextmanager
    async def opened(_: CommandTarget):  # type: ignore[no-untyped-def]
        yield site

    monkeypatch.setattr(target, "open_backend", opened)

    def completed(incomplete: str, **params: object) -> list[str]:
        return completion.complete_job_names(SimpleNamespace(params=params), incomplete)  # type: ignore[arg-type]

    assert completed("") == ["grpo", "ppo"]
    assert completed("pp") == ["ppo"]
    assert completed("s", namespace="team-a") == ["sft"]
    site.failing = Unavailable("away")
    assert completed("") == []


def test_commands_import_only_what_they_need() -> None:
    program = (
        "import sys\n"
        "import kubealign.cli.main\n"
        "heavy = {'torch', 'grpc', 'kubernetes', 'aiohttp', 'redis', 'pydantic', 'fastapi', 'yaml'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"
