"""A job whose programs a sandbox service runs, through the real command."""

import json
import re
from pathlib import Path
from statistics import fmean

import pytest

from kubealign_services.batch.reward_columns import read_scores
from kubealign_services.data.prepared import load_prepared
from support.recorded_batches import recorded_batches
from support.running import RunningJobs
from support.sandbox_service import SandboxServiceProcess
from support.tiny_jobs import online_job, write_jobs

pytestmark = pytest.mark.timeout(300)

STEPS = 4
#: Defines each word of the policy's alphabet that begins with the letter a, so that such a response is a
#: right program, and any other one raises a NameError.
HEAD = """
import itertools
for count in range(4):
    for letters in itertools.product("abcdefgh", repeat=count):
        globals()["a" + "".join(letters)] = None
"""


def test_the_service_is_killed_once(tmp_path: Path) -> None:
    rows = [
        {"prompt": f"p{letter}", "head": HEAD, "tests": [{"input": "", "output": ""}]}
        for letter in "abcdefgh"
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with SandboxServiceProcess(tmp_path / "service.txt", "--parallel-tests", "2") as service:
        server = {"url": service.url, "retries": 20}
        code = {"kind": "InputOutput", "prefixColumn": "head", "server": server}
        job = online_job(
            tmp_path,
            "sandboxed",
            {"rloo": {"promptsPerStep": 8, "samplesPerPrompt": 4}},
            maxSteps=STEPS,
            data={"prompts": {"source": {"path": str(path)}}},
            rewards=[{"name": "tests", "timeoutSeconds": 60, "verifier": {"code": code}}],
            checkpoint={"everySteps": STEPS, "recordBatches": True},
        )
        with RunningJobs(write_jobs(tmp_path, job), tmp_path / "runs", "--no-dashboard") as run:
            run.wait_for_step("sandboxed", 1)
            service.wait_for_programs(at_least=1)
            service.kill()
            service.start()
            assert run.end(200) == 0, run.output[-4000:]
            steps, folder = run.steps("sandboxed"), run.folder("sandboxed")
    prepared, right = load_prepared(folder), 0.0
    for step, batch in enumerate(recorded_batches(folder, STEPS), start=1):
        rewards = []
        for index in range(len(batch.sample_ids)):
            sequence = batch.select([index])
            tokens = sequence.tokens[sequence.token("loss_mask").bool()]
            response = prepared.tokenizer.decode(tokens).removesuffix(str(prepared.tokenizer.eos_token))
            rewards.append(float(re.fullmatch("a[a-h]{0,3}", response) is not None))
        assert read_scores(batch, "tests") == rewards
        for metric in ("reward/tests/mean", "reward/tests/tests.passed"):
            assert steps[step][metric] == pytest.approx(fmean(rewards))
        assert not {"reward/tests/errors", "reward/tests/timeouts"} & steps[step].keys()
        right += sum(rewards)
    assert right > 0, "no program was right, so the test shows nothing"
