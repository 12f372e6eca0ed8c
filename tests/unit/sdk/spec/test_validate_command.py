"""The command `kubealign validate`, run as a process."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kubealign import __version__

Make = Callable[..., dict[str, Any]]
Write = Callable[..., Path]

_HEAVY = ("torch", "grpc", "transformers", "nats", "redis", "cryptography", "numpy")


def kubealign(*arguments: str | Path, code: str = "") -> subprocess.CompletedProcess[str]:
    start = ["-c", code] if code else ["-m", "kubealign.cli.main"]
    return subprocess.run(
        [sys.executable, *start, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_valid_files(document: Make, write: Write) -> None:
    one, two = write(document("sft"), name="a.yaml"), write(document("rloo"), document("ppo"), name="b.yaml")
    done = kubealign("validate", one, two, "--set", "ppo:spec.seed=3")
    assert done.returncode == 0
    assert done.stdout == f"{one}: 1 job, valid\n{two}: 2 jobs, valid\n"
    notes = [line.split(": ", 4)[:4] for line in done.stderr.splitlines()]
    assert notes == [
        [str(two), name, "note", f"spec.algorithm.{name}.minibatchSequences"] for name in ("rloo", "ppo")
    ]


def test_a_warning_leaves_the_job_valid(document: Make, write: Write) -> None:
    tokenizer: dict[str, Any] = {"train": {"characters": {}}}
    model = {"config": {"architecture": {"model_type": "mixtral"}, "tokenizer": tokenizer}}
    changes = {"spec.policy.model": model, "spec.rollout.engine": {"vllm": {"precision": "BFloat16"}}}
    path = write(document("grpo", changes))
    done = kubealign("validate", path)
    assert (done.returncode, done.stdout) == (0, f"{path}: 1 job, valid\n")
    routing, precision = [line for line in done.stderr.splitlines() if ": warning: " in line]
    assert routing.startswith(f"{path}: grpo: warning: spec.policy.model: is a mixture of experts")
    assert precision.startswith(f"{path}: grpo: warning: spec.rollout.engine.vllm.precision: is BFloat16")


def test_every_error_of_every_file(document: Make, write: Write, tmp_path: Path) -> None:
    bad = write(document("sft", {"spec.maxSteps": 0}), document("rloo", {"spec.critic": {}}), name="bad.yaml")
    good = write(document("sft", {"spec.policy.model.path": "${P}"}), name="good.yaml")
    done = kubealign(
        "validate", bad, good, tmp_path / "none.yaml", "--param", "P=x", "--param", "Q=x", "--set", "seed=1"
    )
    assert done.returncode == 3
    assert done.stdout == f"{good}: 1 job, valid\n"
    lines, text = done.stderr.splitlines(), bad.read_text().splitlines()
    assert [line.split(": ")[0] for line in lines] == [
        "--set seed=1",
        "--param Q",
        f"{bad}:{text.index('  maxSteps: 0') + 1}",
        f"{bad}:{text.index('  critic: {}') + 1}",
        str(tmp_path / "none.yaml"),
    ]
    assert "\x1b" not in done.stderr


def test_an_unused_parameter_is_reported(document: Make, write: Write) -> None:
    path = write(document("sft"))
    done = kubealign("validate", path, "--param", "P=1")
    assert done.returncode == 3
    assert done.stderr == "--param P: no document has this parameter: there are none\n"


def test_a_parameter_without_a_value(document: Make, write: Write) -> None:
    done = kubealign("validate", write(document("sft")), "--param", "P")
    assert done.returncode == 2
    assert "'P' must be NAME=VALUE" in done.stderr


def test_the_version() -> None:
    assert kubealign("--version").stdout == f"kubealign {__version__}\n"


def test_help_imports_no_heavy_library() -> None:
    code = f"""
import sys
import kubealign
from kubealign.cli.main import app
try:
    app(["--help"])
except SystemExit as end:
    assert end.code == 0
print("loaded:", sorted(set({_HEAVY!r}) & set(sys.modules)))
"""
    done = kubealign(code=code)
    assert "validate" in done.stdout and "run" in done.stdout
    assert done.stdout.splitlines()[-1] == "loaded: []", done.stderr
