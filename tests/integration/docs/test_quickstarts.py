"""The commands and the code of the quick starts, executed in an empty folder."""

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from support.doc_blocks import ROOT, Block, blocks
from support.running import KUBEALIGN, left_running

DOCS = ROOT / "docs"
EXAMPLE = ROOT / "examples" / "quickstart"
_SECONDS = 840.0
_GENERATED = shutil.ignore_patterns("runs", "data", "mine.yaml", "__pycache__")
#: Fewer steps: the behaviour of the commands does not depend on their number.
_FEWER = {"maxSteps: 120": "maxSteps: 20", "maxSteps: 30": "maxSteps: 6"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a copy of the project's example, with fewer steps."""
    example = tmp_path / "examples" / "quickstart"
    shutil.copytree(EXAMPLE, example, ignore=_GENERATED)
    jobs = (example / "jobs.yaml").read_text()
    for steps, fewer in _FEWER.items():
        assert steps in jobs
        jobs = jobs.replace(steps, fewer)
    (example / "jobs.yaml").write_text(jobs)
    return tmp_path


def run(command: list[str], folder: Path) -> str:
    """Return the output of a command, which must succeed."""
    settings = {name: value for name, value in os.environ.items() if not name.startswith("KUBEALIGN_")}
    settings["PATH"] = f"{KUBEALIGN.parent}{os.pathsep}{settings['PATH']}"
    # Simulates a machine without network and without a cluster.
    settings |= {"HF_HUB_OFFLINE": "1", "KUBECONFIG": str(folder / "none")}
    output = folder / "output.txt"
    with output.open("w") as written:
        ended = subprocess.run(
            command, cwd=folder, env=settings, stdout=written, stderr=subprocess.STDOUT, timeout=_SECONDS
        )
    text = output.read_text()
    assert ended.returncode == 0, f"ended with {ended.returncode}:\n{text[-6000:]}"
    return text


@pytest.mark.timeout(900)
def test_commands_of_the_laptop_quickstart(folder: Path) -> None:
    shown = [block.text for block in blocks(DOCS / "quickstart-laptop.md", "sh")]
    text = run(["bash", "-eu", "-c", "\n".join(shown)], folder)
    assert "dashboard: http://127.0.0.1:" in text
    assert "sums-grpo: succeeded" in text
    assert "reward/mean" in text
    assert "generated_text" in text
    assert "mine.yaml: 1 job, valid" in text
    assert (folder / "examples/quickstart/runs/sums-grpo/result/config.json").exists()
    assert not left_running(folder)


@pytest.mark.timeout(900)
def test_code_of_the_python_quickstart_and_the_sdk_reference(folder: Path) -> None:
    example = folder / "examples" / "quickstart"
    run([sys.executable, "make_data.py"], example)
    shown = [*blocks(DOCS / "quickstart-python.md", "python"), *blocks(DOCS / "sdk.md", "python")]
    script = example / "shown.py"
    script.write_text("\n".join(one_script(block) for block in shown if "Client.cluster(" not in block.text))
    text = run([sys.executable, str(script)], example)
    assert "sums-sft Running" in text
    assert "spec.maxSteps: must be a whole number" in text
    assert "name: sums-careful" in text
    assert "['sums-grpo', 'sums-sft']" in text
    assert "there is no job nobody" in text
    assert not left_running(folder)


def test_cluster_code_is_valid_python() -> None:
    shown = [
        block for block in blocks(DOCS / "quickstart-python.md", "python") if "Client.cluster(" in block.text
    ]
    assert shown
    for block in shown:
        compile(block.text, str(block), "exec")


def one_script(block: Block) -> str:
    """Return the block's code; code with `async with`, which a notebook may contain, runs in its own event
    loop."""
    text = f"print({str(block)!r})\n{block.text}"
    if "async with" not in text:
        return text
    return f"import asyncio\nasync def shown():\n{textwrap.indent(text, '    ')}\nasyncio.run(shown())\n"
