"""Streamed prompts: a long file is read only as far as it is trained on, and each prompt is trained on once
though the driver is killed.
"""

import json
import signal
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path

import pytest

from kubealign_services.data.streaming.stream_order import StreamOrder
from kubealign_services.data.tokenization.tokenizers import train_character_tokenizer
from support.running import RunningJobs
from support.tiny_jobs import ARCHITECTURE, online_job, write_jobs

pytestmark = pytest.mark.timeout(300)

ROWS, BUFFER, PER_STEP, STEPS = 20_000, 100, 8, 24
LETTERS = "abcdefgh"
#: Every tenth prompt is longer than the context of 64 tokens.
LONG = 10


def write_rows(folder: Path) -> Path:
    path = folder / "long.jsonl"
    with path.open("w") as file:
        for number in range(ROWS):
            prompt = LETTERS * 20 if number % LONG == 0 else LETTERS[number % 8] + LETTERS[number // 8 % 8]
            file.write(json.dumps({"prompt": prompt, "number": number}) + "\n")
    return path


def test_each_prompt_is_trained_on_once_and_most_rows_are_never_read(tmp_path: Path) -> None:
    train_character_tokenizer([LETTERS]).save_pretrained(tmp_path / "tokenizer")
    rows = write_rows(tmp_path)
    job = online_job(
        tmp_path,
        "streamed",
        {
            "rloo": {
                "promptsPerStep": PER_STEP,
                "samplesPerPrompt": 2,
                "maxStaleness": 1,
                "kl": {"fixed": {"coefficient": 0.0}},
            }
        },
        maxSteps=STEPS,
        policy={
            "model": {
                "config": {
                    "architecture": ARCHITECTURE,
                    "tokenizer": {"path": str(tmp_path / "tokenizer")},
                }
            }
        },
        data={"prompts": {"source": {"path": str(rows)}, "streaming": {"shuffleBuffer": BUFFER}}},
        checkpoint={"everySteps": 3},
    )
    with RunningJobs(write_jobs(tmp_path, job), tmp_path / "runs", "--no-dashboard") as run:
        run.wait_for_step("streamed", 5)
        run.kill("streamed", "driver")
        run.wait_for_step("streamed", 11)
        # All processes end, and the job continues from its checkpoint.
        run.send(signal.SIGKILL)
        run.end(30)
        run.start()
        assert run.end(200) == 0, run.output[-4000:]
        history, steps = run.history("streamed"), run.steps("streamed")
        report = json.loads((run.folder("streamed") / "prepared" / "report.json").read_text())["train"]
        size = sum(
            path.stat().st_size for path in (run.folder("streamed") / "prepared").iterdir() if path.is_file()
        )
    trained = [name for line in history for name in line["prompts"]]
    assert len(trained) == STEPS * PER_STEP == len(set(trained))
    assert trained == list(islice(expected_names(), len(trained)))
    last = steps[STEPS]
    assert max(each["fence"] for each in steps.values()) >= 3
    assert last["data/rows_read"] < ROWS / 20
    dropped = last["data/dropped_prompts"]
    # The last step's prompts are followed by those that are requested ahead.
    assert len(trained) / LONG / 2 < dropped < last["data/rows_read"] / LONG + 1
    assert report["streaming"] and report["rows_read"] < ROWS / 20 and size < rows.stat().st_size


def expected_names() -> Iterator[str]:
    """Yield the prompts of an undisturbed job: a shuffle buffer row by row."""
    buffer, following = list(range(BUFFER)), count(BUFFER)
    for number in StreamOrder(1, BUFFER).numbers(0, 0):
        index = int(number * BUFFER)
        row, buffer[index] = buffer[index], next(following)
        if row % LONG:
            yield f"0/{row}"
