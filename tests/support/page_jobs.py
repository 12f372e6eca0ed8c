"""Jobs with realistic metrics for the dashboard's pages. No job runs; a MemoryBackend holds the data."""

import math
import random
from datetime import UTC, datetime, timedelta
from typing import Any

from kubealign.client.records import JobEvent, JobRef, ProcessRecord, ProcessState
from kubealign.read_model import SampleRecord
from kubealign.validation_record import ValidationRecord
from support.memory_backend import MemoryBackend

#: Markup that sets window.ran if it is executed.
MARKUP = '<img src=x onerror="window.ran=true"><script>window.ran=true</script>'
_PROMPTS = ("12 + 7 =", "3 + 44 =", "Explain why the sky is blue.", "Write a haiku about snow.")
_WORDS = (
    " the",
    " answer",
    " is",
    " light",
    " scatters",
    ",",
    " so",
    " blue",
    "\n",
    " snow",
    " 19",
    " falls",
    ".",
)


def document(name: str, namespace: str = "default", **metadata: Any) -> dict[str, Any]:
    """Return a PPO job with two rewards."""
    return {
        "apiVersion": "kubealign.dev/v1alpha1",
        "kind": "AlignmentJob",
        "metadata": {"name": name, "namespace": namespace} | metadata,
        "spec": {
            "maxSteps": 200,
            "algorithm": {"ppo": {"promptsPerStep": 64}},
            "policy": {"model": {"huggingFace": {"repo": "acme/sft-1b", "revision": "4f1c2a9"}}},
            "data": {"prompts": {"source": {"path": "/data/train.parquet"}}},
            "rewards": [
                {"name": "helpful", "weight": 1.0, "model": {"path": "/models/rm"}},
                {"name": "format", "weight": 0.1, "function": {"file": {"path": "/rewards.py", "name": "f"}}},
            ],
            "rollout": {"replicas": 2, "sampling": {"maxTokens": 128}},
            "checkpoint": {"everySteps": 20},
        },
    }


def values(step: int, seed: int = 1) -> dict[str, float]:
    """Return the metrics of one step: slow trends with noise."""
    chance = random.Random(seed * 100_003 + step)

    def about(middle: float, noise: float) -> float:
        return middle + chance.gauss(0, noise)

    learned = 1 - math.exp(-step / 60)
    generate, train = about(14, 0.8), about(9, 0.5)
    figures = {
        "reward/mean": about(0.2 + 1.4 * learned, 0.08),
        "reward/std": about(0.6, 0.05),
        "reward/helpful/mean": about(0.1 + 1.3 * learned, 0.1),
        "reward/format/mean": about(0.5 + 0.4 * learned, 0.05),
        "kl/reference": about(0.002 + 0.05 * learned, 0.003),
        "policy/entropy": about(2.4 - 0.9 * learned, 0.05),
        "policy/loss": about(-0.02, 0.01),
        "policy/clip_fraction": abs(about(0.08, 0.02)),
        "trainer/loss": about(-0.01, 0.01),
        "trainer/gradient_norm": abs(about(0.8, 0.15)),
        "trainer/learning_rate": 1e-6 * min(1.0, step / 10),
        "critic/loss": abs(about(0.5 - 0.3 * learned, 0.04)),
        "critic/gradient_norm": abs(about(1.4, 0.3)),
        "critic/explained_variance": about(0.7 * learned, 0.05),
        "value/mean": about(0.1 + 1.2 * learned, 0.05),
        "return/mean": about(0.15 + 1.3 * learned, 0.06),
        "response/length": about(80 + 20 * learned, 4),
        "response/length_max": 128.0,
        "response/truncated_share": abs(about(0.1 - 0.05 * learned, 0.02)),
        "rollout/logprob_gap_mean": abs(about(0.004, 0.0005)),
        "rollout/logprob_gap_max": abs(about(0.08, 0.02)),
        "rollout/staleness": abs(about(0.4, 0.1)),
        "rollout/staleness_max": 1.0,
        "seconds/generate": generate,
        "seconds/score": abs(about(1.2, 0.2)),
        "seconds/values": abs(about(0.8, 0.1)),
        "seconds/logprobs": abs(about(1.5, 0.1)),
        "seconds/train": train,
        "seconds/refit": abs(about(0.9, 0.15)),
        "seconds/step": generate + train + 4.4,
        "tokens_per_second": about(5200, 200),
        "refit/snapshot_seconds": abs(about(0.3, 0.03)),
        "refit/bytes": 2.6e9,
        "refit/workers": 2.0,
        "refit/canary_gap": abs(about(0.0006, 0.0001)),
        "weights/version": float(step),
    }
    if step % 10 == 0:
        figures |= {
            "val/helpful": about(0.1 + 1.1 * learned, 0.02),
            "val/exact": about(0.3 + 0.5 * learned, 0.02),
        }
    return figures


def sample(step: int, index: int, seed: int = 1, **changes: Any) -> SampleRecord:
    """Return one sample of a step, with values for each token."""
    chance = random.Random(seed * 7919 + step * 31 + index)
    tokens = tuple(chance.choice(_WORDS) for _ in range(chance.randint(30, 70)))
    engine = [-abs(chance.gauss(0, 1.2)) for _ in tokens]
    gaps = [abs(chance.gauss(0, 0.01)) * (12 if chance.random() < 0.03 else 1) for _ in tokens]
    fields: dict[str, Any] = {
        "entry": "",
        "step": step,
        "prompt": _PROMPTS[index % len(_PROMPTS)],
        "response": "".join(tokens),
        "reward": round(chance.gauss(0.8, 0.5), 3),
        "rewards": {"helpful": round(chance.gauss(0.7, 0.5), 3), "format": 0.9},
        "explanations": {"format": "2 of 2 tags"},
        "weight_version": step - 1,
        "truncated": index == 3,
        "group_id": f"g{step}-{index}",
        "purpose": "train",
        "tokens": tokens,
        "token_values": {
            "logprobs": tuple(engine),
            "trainer_logprobs": tuple(a + b for a, b in zip(engine, gaps, strict=True)),
            "logprob_gap": tuple(gaps),
            "kl": tuple(chance.gauss(0.01, 0.08) for _ in tokens),
            "advantages": tuple(chance.gauss(0.1, 0.9) for _ in tokens),
            "values": (None, *(chance.gauss(0.8, 0.2) for _ in tokens[1:])),
        },
    }
    return SampleRecord(**fields | changes)


async def running_job(
    site: MemoryBackend, name: str, steps: int, *, seed: int = 1, namespace: str = "default"
) -> JobRef:
    """Create a job that has completed `steps` steps, with processes, samples, logs and events."""
    record = await site.create(document(name, namespace, labels={"team": "align"}))
    ref = record.ref
    now = datetime.now(UTC)
    site.status(
        ref,
        phase="Running",
        message=f"step {steps} of 200",
        weightVersion=steps,
        restarts=1,
        startTime=(now - timedelta(minutes=50)).isoformat(timespec="seconds"),
        roles=[
            {"name": "trainer", "replicas": 1, "ready": 1},
            {"name": "rollout", "replicas": 2, "ready": 2},
        ],
        rolloutReplicas=2,
        conditions=[
            {
                "type": "Ready",
                "status": "True",
                "reason": "AllReady",
                "message": "every role serves",
                "lastTransitionTime": now.isoformat(timespec="seconds"),
            }
        ],
    )
    site.staff(ref, *(_process(name, role, now) for name, role in _PROCESSES))
    for process, version in (("rollout-0", steps), ("rollout-1", steps)):
        site.say(
            ref, process, weight_version=version, tokens_per_second=2600.0, running=48, waiting=3, time=0.0
        )
    for step in range(1, steps + 1):
        site.report(ref, step, values(step, seed))
        if step % 5 == 0 or step > steps - 3:
            for index in range(4):
                site.sample(ref, sample(step, index, seed))
    site.log(
        ref,
        "driver",
        '{"time": "2026-01-01T12:00:00Z", "level": "info", "message": "step", "step": 1, "job": "x"}',
        '{"time": "2026-01-01T12:00:09Z", "level": "warning", "message": "slow", "worker": "rollout-1"}',
        "Traceback (most recent call last): nothing of JSON",
    )
    site.log(ref, "rollout-0", '{"time": "2026-01-01T12:00:01Z", "level": "info", "message": "took weights"}')
    site.happen(ref, JobEvent(now - timedelta(minutes=50), "Normal", "Started", "all roles are ready"))
    site.happen(
        ref, JobEvent(now - timedelta(minutes=20), "Warning", "Restarted", "rollout-1 ended with 137", 2)
    )
    return ref


def validate(site: MemoryBackend, ref: JobRef, step: int, right: int, count: int = 24) -> None:
    """Add a validation on `count` sums, of which the first `right` are solved, with its metrics."""
    share = right / count
    records = [
        ValidationRecord(
            row,
            f"{row} + 17 =",
            f"Add the tens, then the ones. {row} + 17 is {row + 17 if row < right else row + 7}.",
            {"exact": float(row < right)},
            {"exact": f"read {row + 17 if row < right else row + 7}"},
        )
        for row in range(count)
    ]
    site.validate(ref, step, *records)
    metrics = {"val/exact": share, "val/exact/ci_low": share - 0.08, "val/exact/ci_high": share + 0.08}
    site.report(ref, step, metrics)


_PROCESSES = (
    ("driver", "driver"),
    ("trainer-0", "trainer"),
    ("critic-0", "critic"),
    ("rollout-0", "rollout"),
    ("rollout-1", "rollout"),
    ("reward-helpful-0", "reward"),
)


def _process(name: str, role: str, now: datetime) -> ProcessRecord:
    return ProcessRecord(
        name,
        role,
        ProcessState.READY,
        restarts=1 if name == "rollout-1" else 0,
        message="ended with 137: out of memory" if name == "rollout-1" else "",
        started=now - timedelta(minutes=50),
        silent_seconds=2.0 if role != "critic" else 45.0,
        where=str(4000 + len(name)),
    )
