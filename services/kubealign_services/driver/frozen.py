"""Which frozen models say something of a job's rows, and how they are asked."""

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
    """The reference or the teacher of a job that learns from given rows. What they say is kept in
    `folder`."""
    spec = job.spec
    reference = spec.effective_reference
    if spec.teacher is not None:
        rollout = spec.rollout
        scores = RowScores(exchange, [TEACHER], rollout.group_timeout_seconds, rollout.group_retries)
        kept = FrozenCache(folder, TEACHER, exchange.fence)
        return FrozenTeacher(scores, kept, spec.algorithm.value.temperature)
    if reference is None or spec.algorithm.value.samples:
        return NoFrozenModels()
    ask: Ask = trainer.reference_logprobs
    if reference.placement is ReferencePlacement.OWN:
        rollout = spec.rollout
        ask = from_bus(RowScores(exchange, [REFERENCE], rollout.group_timeout_seconds, rollout.group_retries))
    return FrozenReference(ask, FrozenCache(folder, REFERENCE, exchange.fence))
