"""The GSM8K example on its unchanged files: a few steps of each algorithm on real text."""

import json
import math
import shutil
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import yaml

from support.metrics_page import online_figures
from support.running import RunningJobs

#: Job -> step -> metrics.
Figures = dict[str, dict[int, dict[str, Any]]]

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "gsm8k" / "jobs.yaml"
DATA = ROOT.parent / "shared" / "data" / "gsm8k"
ONLINE = ("gsm8k-ppo", "gsm8k-rloo", "gsm8k-grpo")
STEPS = {"gsm8k-sft": 12, "gsm8k-rm": 10} | dict.fromkeys(ONLINE, 3)
#: Jobs of the run that make test has.
SHORT = ("gsm8k-sft", "gsm8k-grpo")

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        not (DATA / "train.jsonl").exists(), reason=f"GSM8K is not there: {DATA} has no train.jsonl"
    ),
]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(SHORT, id="imitation and GRPO"),
        pytest.param(tuple(STEPS), id="all jobs", marks=pytest.mark.full),
    ],
)
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Figures:
    """Run jobs of the example and return their metrics."""
    folder = tmp_path_factory.mktemp("gsm8k")
    jobs = {job["metadata"]["name"]: job for job in yaml.safe_load_all(EXAMPLE.read_text())}
    assert jobs.keys() == STEPS.keys()
    file = folder / "jobs.yaml"
    file.write_text(yaml.safe_dump_all([jobs[name] for name in request.param], sort_keys=False))
    for other in EXAMPLE.parent.glob("*.py"):
        shutil.copy(other, folder)
    shorter = [f"--set={name}:spec.maxSteps={STEPS[name]}" for name in request.param]
    with RunningJobs(file, folder / "runs", f"--param=DATA={DATA}", *shorter) as run:
        assert run.end(560) == 0, run.output
        return {name: run.steps(name) for name in request.param}


def test_every_job_makes_its_steps_and_every_figure_is_finite(
    ran: Figures,
) -> None:
    for job, figures in ran.items():
        assert sorted(figures) == list(range(1, STEPS[job] + 1)), job
        for step, line in figures.items():
            assert [name for name, value in line.items() if not math.isfinite(value)] == [], (job, step)


def test_the_losses_fall(ran: Figures) -> None:
    """Check falling losses. A random model with a vocabulary of 4,000 begins at log 4000 = 8.3 nats per
    token. Only the language-model part of the reward model's loss reliably falls within a few steps."""
    sft = [ran["gsm8k-sft"][step]["sft/loss"] for step in sorted(ran["gsm8k-sft"])]
    assert sft[0] == pytest.approx(math.log(4000), abs=0.3)
    assert sft[-1] < sft[0] - 1.5
    if "gsm8k-rm" in ran:
        reward_model = [ran["gsm8k-rm"][step] for step in sorted(ran["gsm8k-rm"])]
        first = reward_model[0]["trainer/loss"]
        assert fmean(line["trainer/loss"] for line in reward_model[-4:]) < first - 0.1


def test_dropped_prompts_are_counted(ran: Figures) -> None:
    """Check that maxTokens 128 drops the longest questions, the same ones in each job that reads them."""
    rows = sum(1 for line in (DATA / "train.jsonl").read_text().splitlines() if json.loads(line))
    counts = {line["data/dropped_prompts"] for job in ONLINE for line in ran.get(job, {}).values()}
    (dropped,) = counts
    assert 0 < dropped < 0.5 * rows


def test_every_figure_is_there_and_rollout_and_trainer_agree(ran: Figures) -> None:
    for job in sorted(ran.keys() & set(ONLINE)):
        check_online_figures(job, ran[job])


def check_online_figures(job: str, figures: dict[int, dict[str, Any]]) -> None:
    """Assert that an online job has every metric in each step, and that rollout and trainer agree."""
    ppo = job == "gsm8k-ppo"
    sources = ["preference"] if ppo else ["exact", "form"]
    expected = online_figures(sources, critic=ppo, kl_in_loss=job == "gsm8k-grpo")
    for step, line in figures.items():
        # The first PPO step of the example trains only the critic.
        idle = ("policy/", "trainer/") if ppo and step == 1 else ()
        assert {name for name in expected - line.keys() if not name.startswith(idle)} == set(), step
        assert line["rollout/logprob_gap_max"] < 1e-4
        assert line["rollout/staleness_max"] == 0
