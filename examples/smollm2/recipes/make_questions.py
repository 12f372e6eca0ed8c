"""Write questions of the environment of reasoning-gym.yaml: `python make_questions.py --out questions`."""

import argparse
import subprocess
import sys
from pathlib import Path

#: File -> seed of its first question, and number of questions.
FILES = {"prompts": (0, 1000), "held": (100_000, 64)}
_JOB = Path(__file__).with_name("reasoning-gym.yaml")
_TIMEOUT_SECONDS = 300


def make_questions(folder: Path) -> None:
    """Write prompts.jsonl and held.jsonl into a folder. Raises CalledProcessError where that fails."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (seed, rows) in FILES.items():
        module = ["-m", "kubealign_services.environments.rows"]
        options = ["--seed", str(seed), "--rows", str(rows)]
        with (folder / f"{name}.jsonl").open("w") as file:
            subprocess.run(
                [sys.executable, *module, str(_JOB), *options],
                stdout=file,
                check=True,
                timeout=_TIMEOUT_SECONDS,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description="Write prompts.jsonl and held.jsonl.")
    parser.add_argument("--out", type=Path, default=Path("questions"), metavar="FOLDER")
    make_questions(parser.parse_args().out)


if __name__ == "__main__":
    main()
