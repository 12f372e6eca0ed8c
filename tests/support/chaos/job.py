"""A small job with every kind of process, whose speed a test controls while it runs."""

from pathlib import Path

from support.tiny_jobs import (
    FROM_CONFIG,
    LETTER_A,
    PACED_LETTER_A,
    online_job,
    set_pace,
    write_jobs,
    write_prompts,
    write_reward,
)

NAME = "chaos"
PROMPTS_PER_STEP = 4
#: Every process that a fault may hit.
PROCESSES = (
    "driver",
    "nats",
    "redis",
    "trainer-0",
    "trainer-1",
    "critic-0",
    "reference-0",
    "rollout-0",
    "rollout-1",
    "rollout-2",
    "reward-letters-0",
    "reward-length-0",
)
_LENGTH = LETTER_A.replace('response.count("a") / max(1, len(response))', "len(response) / 4")


def write_chaos_job(folder: Path, steps: int, pace: float) -> Path:
    """Write a PPO job of exactly one epoch, whose batches are recorded. Return the file.

    Args:
        pace: Least seconds of a step, until `set_pace` changes them.
    """
    algorithm = {
        "ppo": {
            "promptsPerStep": PROMPTS_PER_STEP,
            "samplesPerPrompt": 2,
            "kl": {"fixed": {"coefficient": 0.02}},
        }
    }
    job = online_job(
        folder,
        NAME,
        algorithm,
        maxSteps=steps,
        critic={"model": FROM_CONFIG},
        # A rank that waits for a stopped one gives up long before a user would.
        trainer={"ranks": 2, "stepTimeoutSeconds": 20, "optimizer": {"adamW": {"learningRate": 1.0e-3}}},
        checkpoint={"everySteps": 3, "recordBatches": True},
        lifecycle={"maxRestarts": 10_000, "gracePeriodSeconds": 10},
    )
    spec = job["spec"]
    spec["data"] = {"prompts": {"source": {"path": str(write_prompts(folder, steps * PROMPTS_PER_STEP))}}}
    paced = PACED_LETTER_A.format(file=str(set_pace(folder, pace)))
    spec["rewards"] = [write_reward(folder, paced), write_reward(folder, _LENGTH, "length")]
    spec["rollout"] |= {"replicas": 3, "groupTimeoutSeconds": 30, "refit": {"timeoutSeconds": 20}}
    return write_jobs(folder, job)
