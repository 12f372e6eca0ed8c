"""Group plans from a job's spec."""

from kubealign.spec.job import AlignmentJob
from kubealign.spec.sections.rollout import Rollout
from kubealign_services.roles.driver.rollouts.group_buffer import GroupPlan
from kubealign_services.roles.driver.rollouts.work_items import to_sampling_proto


def build_group_plan(
    job: AlignmentJob, rollout: Rollout, prompts: int, samples: int, temperature: float | None = None
) -> GroupPlan:
    """Return the plan to request `prompts` groups at a time, each of `samples` responses.

    Args:
        temperature: Sampling temperature; None: the temperature of the rollout.
    """
    return GroupPlan(
        job_seed=job.spec.seed,
        prompts_per_step=prompts,
        samples_per_prompt=samples,
        sampling=to_sampling_proto(rollout.sampling, temperature),
        group_timeout=rollout.group_timeout_seconds,
        group_retries=rollout.group_retries,
        max_failed_groups=job.spec.lifecycle.max_failed_groups,
    )
