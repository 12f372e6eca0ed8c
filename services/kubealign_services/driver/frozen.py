"""Builds the client of the frozen model (reference or teacher) that scores a job's given rows."""

from pathlib import Path

from kubealign.spec.job import AlignmentJob
from kubealign.spec.rollout import ReferencePlacement
from kubealign_services.driver.assembly import REFERENCE
from kubealign_services.driver.exchange import Exchange
from kubealign_services.driver.frozen_cache import FrozenCache
from kubealign_services.driver.frozen_reference import Ask, FrozenReference, from_bus
from kubealign_services.driver.frozen_teacher import TEACHER, FrozenTeacher
from kubealign_services.driver.row_scores import RowScores
from kubealign_services.driver.source import FrozenModels, NoFrozenModels
from kubealign_services.driver.training_client import TrainerClient


def build_frozen(job: AlignmentJob, exchange: Exchange, trainer: TrainerClient, folder: Path) -> FrozenModels:
    """Create the reference or teacher client of a job that trains on given rows. Scores are cached in
    `folder`.
    """
    spec = job.spec
    reference = spec.effective_reference
    if spec.teacher is not None:
        rollout = spec.rollout
        scores = RowScores(exchange, [TEACHER], rollout.group_timeout_seconds, rollout.group_retries)
        cache = FrozenCache(folder, TEACHER, exchange.fence)
        return FrozenTeacher(scores, cache, spec.algorithm.value.temperature)
    if reference is None or spec.algorithm.value.samples:
        return NoFrozenModels()
    request_logprobs: Ask = trainer.reference_logprobs
    if reference.placement is ReferencePlacement.OWN:
        rollout = spec.rollout
        request_logprobs = from_bus(
            RowScores(exchange, [REFERENCE], rollout.group_timeout_seconds, rollout.group_retries)
        )
    return FrozenReference(request_logprobs, FrozenCache(folder, REFERENCE, exchange.fence))
