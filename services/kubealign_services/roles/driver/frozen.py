"""Builds the client of the frozen model (reference or teacher) that scores a job's given rows."""

from pathlib import Path

from kubealign.spec.job import AlignmentJob
from kubealign.spec.sections.rollout import ReferencePlacement
from kubealign_services.roles.driver.rollouts.batch_assembly import REFERENCE
from kubealign_services.roles.driver.rollouts.collector import RolloutCollector
from kubealign_services.roles.driver.frozen_models.cache import FrozenScoreCache
from kubealign_services.roles.driver.frozen_models.reference import LogprobsRequest, FrozenReference, request_over_bus
from kubealign_services.roles.driver.frozen_models.teacher import TEACHER, FrozenTeacher
from kubealign_services.roles.driver.frozen_models.scores import RowScorer
from kubealign_services.roles.driver.sources.batch_sources import FrozenModels, NoFrozenModels
from kubealign_services.roles.driver.trainer_client import TrainerClient


def build_frozen_models(job: AlignmentJob, collector: RolloutCollector, trainer: TrainerClient, folder: Path) -> FrozenModels:
    """Create the reference or teacher client of a job that trains on given rows. Scores are cached in
    `folder`.
    """
    spec = job.spec
    reference = spec.effective_reference
    if spec.teacher is not None:
        rollout = spec.rollout
        scores = RowScorer(collector, [TEACHER], rollout.group_timeout_seconds, rollout.group_retries)
        cache = FrozenScoreCache(folder, TEACHER, collector.fence)
        return FrozenTeacher(scores, cache, spec.algorithm.value.temperature)
    if reference is None or spec.algorithm.value.samples:
        return NoFrozenModels()
    request_logprobs: LogprobsRequest = trainer.reference_logprobs
    if reference.placement is ReferencePlacement.OWN:
        rollout = spec.rollout
        request_logprobs = request_over_bus(
            RowScorer(collector, [REFERENCE], rollout.group_timeout_seconds, rollout.group_retries)
        )
    return FrozenReference(request_logprobs, FrozenScoreCache(folder, REFERENCE, collector.fence))
