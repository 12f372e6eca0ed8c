"""Wheel installed without extras in an empty environment."""

import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[3]
UV = Path(sys.executable).with_name("uv")
PROGRAM = """
import sys
import kubealign
assert not {"torch", "grpc", "kubernetes", "aiohttp", "pydantic"} & set(sys.modules)
assert "site-packages" in kubealign.__file__, kubealign.__file__
with kubealign.AlignmentClient.local("runs") as client:
    assert client.list() == []
    try:
        client.submit(open(sys.argv[1]).read())
    except kubealign.errors.NotPossible as refusal:
        print(refusal)
"""


def run(*command: object, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command], cwd=folder, capture_output=True, text=True, check=False, timeout=240
    )


def done(*command: object, folder: Path) -> str:
    ran = run(*command, folder=folder)
    assert ran.returncode == 0, f"{command}:\n{ran.stdout}\n{ran.stderr}"
    return ran.stdout


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the bin folder of an environment with the wheel and its minimum dependencies."""
    if not UV.exists():
        pytest.skip(f"there is no {UV}: make .venv/.dev")
    folder = tmp_path_factory.mktemp("bare")
    built = ("--no-build-isolation", "--offline", "--python", sys.executable, "--out-dir", folder)
    done(UV, "build", "--wheel", *built, folder=CHECKOUT)
    done(UV, "venv", "--offline", "--python", sys.executable, "venv", folder=folder)
    wheel = next(folder.glob("kubealign-*.whl"))
    pinned = CHECKOUT / "requirements" / "services.txt"
    python = folder / "venv" / "bin" / "python"
    installed = run(UV, "pip", "install", "--offline", "--python", python, "-c", pinned, wheel, folder=folder)
    if installed.returncode != 0:
        pytest.skip(f"its dependencies are not in uv's cache: {installed.stderr.strip()[-500:]}")
    return python.parent


def test_bare_wheel_can_write_and_validate_a_job(bare: Path, tmp_path: Path) -> None:
    names = done(UV, "pip", "list", "--python", bare / "python", folder=tmp_path)
    assert "kubealign" in names and not {"torch", "grpcio", "redis"} & set(names.split())
    (tmp_path / "job.yaml").write_text(done(bare / "kubealign", "init", "ppo", folder=tmp_path))
    assert "1 job, valid" in done(bare / "kubealign", "validate", "job.yaml", folder=tmp_path)
    # Missing requirements for running a job are reported up front.
    output = done(bare / "python", "-c", PROGRAM, "job.yaml", folder=tmp_path)
    assert "pip install 'kubealign[services]'" in output


def test_wheel_is_typed(bare: Path) -> None:
    packages = next((bare.parent / "lib").glob("python*/site-packages"))
    assert (packages / "kubealign" / "py.typed").exists()
