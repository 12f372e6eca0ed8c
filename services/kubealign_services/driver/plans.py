"""How groups are asked for, as a job's spec says."""

from kubealign.spec.job import AlignmentJob
from kubealign.spec.rollout import Rollout
from kubealign_services.driver.groups import GroupPlan
from kubealign_services.driver.items import sampling_message


def group_plan(
    job: AlignmentJob, rollout: Rollout, prompts: int, samples: int, temperature: float | None = None
) -> GroupPlan:
    """Groups of `samples` responses, `prompts` of them at a time. temperature: another than the rollout's;
    None: that."""
    return GroupPlan(
        job_seed=job.spec.seed,
        prompts_per_step=prompts,
        samples_per_prompt=samples,
        sampling=sampling_message(rollout.sampling, temperature),
        group_timeout=rollout.group_timeout_seconds,
        group_retries=rollout.group_retries,
        max_failed_groups=job.spec.lifecycle.max_failed_groups,
    )
