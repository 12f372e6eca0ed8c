"""Parts of every demonstration: the command that a user would type, and what is shown of its run."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


def run_jobs(file: Path, runs: Path, options: Sequence[str]) -> int:
    """Run `kubealign run` in this terminal; return its exit code.

    Args:
        file: The jobs.
        runs: Folder of the run directories.
    """
    command = [str(Path(sys.executable).with_name("kubealign")), "run", str(file), "--runs-dir", str(runs)]
    # Ctrl-C reaches the command as well, which shuts down cleanly: wait for it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with subprocess.Popen([*command, *options], preexec_fn=_heed_ctrl_c) as process:
        return process.wait()


def _heed_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def metrics(run: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's metrics.jsonl."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def validation_samples(run: Path) -> list[Path]:
    """Return the files with a run's validation samples, the first validation first."""
    return sorted((run / "validation").glob("step-*.jsonl"))


def answers_table(
    run: Path, column: str, question: Callable[[str], str] = lambda prompt: prompt, count: int = 3
) -> Table:
    """Return a table of the answers to the same prompts in the first and in the last validation.

    Args:
        column: Column of the data that holds the right answer.
        question: Returns the part of a prompt that is shown.
    """
    paths = validation_samples(run)
    first, last = (
        [json.loads(line) for line in path.read_text().splitlines()] for path in (paths[0], paths[-1])
    )
    table = Table(title=f"The first {count} held-out prompts", title_justify="left")
    for name in ("prompt", "before", "after", "right answer"):
        table.add_column(name)
    answered = {sample["prompt"]: sample["response"] for sample in last}
    for sample in first[:count]:
        prompt = sample["prompt"]
        table.add_row(question(prompt), sample["response"], answered[prompt], sample["columns"][column])
    return table


def show_result(console: Console, run: Path) -> None:
    """Print the path of a run's model."""
    console.print(f"The aligned model: {run / 'result'}", soft_wrap=True)
    console.print("  transformers.AutoModelForCausalLM.from_pretrained(...) loads it.")
