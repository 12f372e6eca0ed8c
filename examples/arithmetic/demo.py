"""Make the data, run the three jobs, and show the effect of PPO: `python examples/arithmetic/demo.py
--seed 1`."""

import argparse
import sys
from pathlib import Path

from make_data import make
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))

from demo_terminal import answers_table, metrics, run_jobs, show_result, validation_samples  # noqa: E402

SFT, REWARD_MODEL, PPO = "arithmetic-sft", "arithmetic-rm", "arithmetic-ppo"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="Seed of the data and of all three jobs.")
    parser.add_argument("--runs-dir", type=Path, default=Path("runs"), help="Parent of the demo's folder.")
    options = parser.parse_args()
    runs = (options.runs_dir / f"demo-seed-{options.seed}").absolute()
    data = runs / "data"
    make(options.seed, data)
    parameters = ("--param", f"DATA={data}", "--set", f"spec.seed={options.seed}")
    code = run_jobs(HERE / "jobs.yaml", runs, parameters)
    if code == 0:
        show(Console(), runs)
    return code


def show(console: Console, runs: Path) -> None:
    """Print the tables, three answers before and after PPO, and the path of the model."""
    measured = [line for line in metrics(runs / PPO) if "val/preferred" in line]
    before, after = measured[0], measured[-1]
    count = len(validation_samples(runs / PPO)[0].read_text().splitlines())

    table = Table(title=f"Held-out sums, {count} answers sampled at temperature 1", title_justify="left")
    for column, justify in (
        ("", "left"),
        ("before PPO", "right"),
        ("after PPO", "right"),
        ("change", "right"),
    ):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    for label, name in (
        ("preferred: worked and right", "val/preferred"),
        ("exact match: right", "val/exact"),
    ):
        table.add_row(
            label, f"{before[name]:.3f}", f"{after[name]:.3f}", f"{after[name] - before[name]:+.3f}"
        )
    console.print(table)
    console.print(
        "Most of the gain in exact match comes from the change of form: "
        "with the working shown, each step is easier."
    )

    console.print(reward_model_table(runs))
    console.print(seconds_table(runs))
    console.print(answers_table(runs / PPO, "worked"))
    show_result(console, runs / PPO)


def reward_model_table(runs: Path) -> Table:
    """Return a table of the accuracy on held-out pairs, by the kind of the rejected answer."""
    last = [line for line in metrics(runs / REWARD_MODEL) if "val/accuracy" in line][-1]
    table = Table(title="Reward model, held-out pairs", title_justify="left")
    table.add_column("rejected answer")
    table.add_column("accuracy", justify="right")
    for name, value in sorted(last.items()):
        if name.startswith("val/accuracy/"):
            table.add_row(name.removeprefix("val/accuracy/"), f"{value:.3f}")
    table.add_row("all", f"{last['val/accuracy']:.3f}")
    return table


def seconds_table(runs: Path) -> Table:
    """Return a table of the seconds per phase."""
    phases = {
        "generate": "gen",
        "score": "score",
        "values": "values",
        "logprobs": "logp",
        "train": "train",
        "refit": "refit",
        "step": "step",
    }
    table = Table(title="Seconds by phase (refit overlaps what follows)", title_justify="left")
    table.add_column("job")
    table.add_column("steps", justify="right")
    for label in phases.values():
        table.add_column(label, justify="right")
    for job in (SFT, REWARD_MODEL, PPO):
        steps = {line["step"]: line for line in metrics(runs / job) if "seconds/step" in line}
        sums = [sum(line.get(f"seconds/{phase}", 0.0) for line in steps.values()) for phase in phases]
        name = job.removeprefix("arithmetic-")
        table.add_row(name, str(len(steps)), *(f"{total:.1f}" if total else "" for total in sums))
    return table


if __name__ == "__main__":
    sys.exit(main())
