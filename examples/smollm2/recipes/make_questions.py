"""Write questions of the environment of reasoning-gym.yaml: `python make_questions.py --out questions`."""

import argparse
import json
import subprocess
import sys
from pathlib import Path

#: File -> seed of its first question, and number of questions.
FILES = {"prompts": (0, 1000), "held": (100_000, 64)}
#: Operations and results in the messages before each question: the environment accepts a number alone.
EXAMPLES = {"2 + 3": "5", "14 - 9": "5"}
_JOB = Path(__file__).with_name("reasoning-gym.yaml")
_TIMEOUT_SECONDS = 300


def make_questions(folder: Path) -> None:
    """Write prompts.jsonl and held.jsonl into a folder. Raises CalledProcessError where that fails."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (seed, count) in FILES.items():
        rows = [json.loads(line) for line in _ask_environment(seed, count).splitlines()]
        for row in rows:
            row["messages"] = [*_examples(row["messages"][0]["content"]), *row["messages"]]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def _examples(question: str) -> list[dict[str, str]]:
    """Return questions like this one, with their answers, as messages."""
    words, _, _ = question.rpartition(": ")
    return [
        {"role": role, "content": content}
        for operation, result in EXAMPLES.items()
        for role, content in (("user", f"{words}: {operation} ="), ("assistant", result))
    ]


def _ask_environment(seed: int, count: int) -> str:
    """Return the rows of `count` questions as JSON Lines."""
    module = ["-m", "kubealign_services.environments.rows"]
    options = ["--seed", str(seed), "--rows", str(count)]
    run = subprocess.run(
        [sys.executable, *module, str(_JOB), *options],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=_TIMEOUT_SECONDS,
    )
    return run.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description="Write prompts.jsonl and held.jsonl.")
    parser.add_argument("--out", type=Path, default=Path("questions"), metavar="FOLDER")
    make_questions(parser.parse_args().out)


if __name__ == "__main__":
    main()
