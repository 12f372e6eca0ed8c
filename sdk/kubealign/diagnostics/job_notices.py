"""Notices about a valid job: settings that can spoil a run, or that have no effect together. Pure but for the
config.json of local models.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from kubealign.planning.errors import PlanError
from kubealign.planning.model.shape_sources import read_config
from kubealign.spec.algorithms import Algorithm, OnPolicySpec
from kubealign.spec.base import field_alias
from kubealign.spec.job import AlignmentJob, AlignmentJobSpec
from kubealign.spec.model_types import router_type_error
from kubealign.spec.paths import format_path
from kubealign.spec.sections.engines import LOOPBACK_URL_PATTERN, Engine
from kubealign.spec.sections.models import Model
from kubealign.spec.sections.precision import Precision
from kubealign.spec.sections.rewards import Reward
from kubealign.spec.sections.validation import ValidationScore


class NoticeLevel(StrEnum):
    """Warning: the run may be spoilt. Note: a setting has no effect."""

    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True)
class JobNotice:
    """One notice. `path`: the field to change, such as spec.algorithm.grpo.importance."""

    level: NoticeLevel
    path: str
    message: str


def job_notices(job: AlignmentJob, jobs: Sequence[AlignmentJob]) -> Iterator[JobNotice]:
    """Yield the notices of a job.

    Args:
        jobs: Jobs of the same file, whose results may be the job's models.
    """
    yield from _expert_routing(job.spec, {other.name: other for other in jobs})
    yield from _clipping(job.spec)
    yield from _precision_mix(job.spec)
    yield from _egress(job.spec)


def _expert_routing(spec: AlignmentJobSpec, jobs: Mapping[str, AlignmentJob]) -> Iterator[JobNotice]:
    """Warn of a mixture of experts whose router decides anew in training.

    A rounding difference between engine and trainer can send a token to another expert, which changes its
    log-probability far more than the rounding itself (Ma et al. 2025, rollout routing replay; Zheng et al.
    2025, GSPO). Replay of the engine's choice removes the difference, importance weighting corrects the loss
    for it.
    """
    entry, rollout = spec.algorithm.value, spec.effective_rollout
    if not isinstance(entry, OnPolicySpec) or rollout is None:
        return
    precisions = {spec.trainer.backend.value.precision, rollout.engine.value.effective_precision}
    if precisions == {Precision.FLOAT32} or entry.effective_importance is not None:
        return
    if rollout.routing_replay:
        return
    config = _config_of(spec.policy.model, jobs)
    if _is_mixture_of_experts(config):
        name = field_alias(Algorithm, spec.algorithm.member)
        replay = "spec.rollout.routingReplay to true, " if _can_replay(spec, config) else ""
        yield JobNotice(
            NoticeLevel.WARNING,
            "spec.policy.model",
            "is a mixture of experts, and the engine's routing is not replayed in training: in "
            f"{_half_precision(precisions)} engine and trainer can choose other experts for a token, and "
            "their log-probabilities differ "
            f"(rollout/logprob_gap_mean). Set {replay}spec.algorithm.{name}.importance, or Float32 for both",
        )


def _can_replay(spec: AlignmentJobSpec, config: Mapping[str, Any]) -> bool:
    """Return True where engine, backend and model allow rollout.routingReplay."""
    engine = spec.rollout.engine.torch
    return (
        engine is not None
        and engine.tensor_parallel == 1
        and spec.trainer.backend.torch is not None
        and router_type_error(config.get("model_type")) is None
    )


def _half_precision(precisions: set[Precision]) -> str:
    return " and ".join(sorted(precision for precision in precisions if precision is not Precision.FLOAT32))


def _clipping(spec: AlignmentJobSpec) -> Iterator[JobNotice]:
    """Note that the importance ratio is 1 where each batch has one update, by the weights that sampled it."""
    entry = spec.algorithm.value
    if not isinstance(entry, OnPolicySpec) or not entry.bounds_ratio or entry.plugin is not None:
        return
    if entry.updates_per_step > 1 or entry.max_staleness > 0:
        return
    sequences = entry.sequences_per_step
    smaller = f"minibatchSequences to a divisor of {sequences} below it, or " if sequences > 1 else ""
    yield JobNotice(
        NoticeLevel.NOTE,
        f"spec.algorithm.{field_alias(Algorithm, spec.algorithm.member)}.minibatchSequences",
        "each step has one update, so the importance ratio is 1 and clipping never acts. For several "
        f"updates, set {smaller}epochsPerStep above 1",
    )


def _precision_mix(spec: AlignmentJobSpec) -> Iterator[JobNotice]:
    """Warn of an online job whose engine computes in another precision than the trainer.

    Both compute the log-probabilities of the same tokens, which the importance weights and the mismatch gate
    compare. An engine in Float16 can also overflow on weights that were trained in a wider range.
    """
    engine, backend = spec.rollout.engine, spec.trainer.backend
    if not spec.algorithm.value.online or engine.value.precision in (None, backend.value.precision):
        return
    name = field_alias(Engine, engine.member)
    overflow = ""
    if engine.value.precision is Precision.FLOAT16:
        overflow = ", and activations above 65504 overflow in the engine alone"
    yield JobNotice(
        NoticeLevel.WARNING,
        f"spec.rollout.engine.{name}.precision",
        f"is {engine.value.precision}, but spec.trainer.backend.{backend.member}.precision is "
        f"{backend.value.precision}: the log-probabilities of the same tokens differ "
        f"(rollout/logprob_gap_mean){overflow}. Set both to the same value, or remove it: the engine then "
        "has the trainer's precision",
    )


def _egress(spec: AlignmentJobSpec) -> Iterator[JobNotice]:
    """Note that egress is a matter of the cluster's network, and what servers need of it."""
    entries: dict[str, Reward | ValidationScore] = {
        f"spec.rewards[{i}]": e for i, e in enumerate(spec.rewards)
    }
    scores = [score for rows in spec.held_out_rows for score in rows.score_fields()]
    entries |= {format_path(("spec", *path)): score for path, score in scores}
    egress = {f"{path}.egress": entry.egress for path, entry in entries.items()}
    egress["spec.rollout.egress"] = spec.rollout.egress
    # Field of egress -> field of a URL, and the URL.
    servers = {
        f"{path}.egress": (f"{path}.{field}.url", server.url)
        for path, entry in entries.items()
        for field, server in entry.servers.items()
    }
    engine = spec.rollout.engine.openai if spec.samples else None
    if engine is not None:
        servers["spec.rollout.egress"] = ("spec.rollout.engine.openai.url", engine.url)
    for path, rules in egress.items():
        field, url = servers.get(path, ("", ""))
        if url and not rules and not re.match(LOOPBACK_URL_PATTERN, url):
            yield JobNotice(
                NoticeLevel.NOTE,
                path,
                f"is empty, so that in a cluster the process cannot connect to {url} ({field}): name the "
                "server's namespace or addresses. On one machine it has no effect",
            )
        if rules:
            yield JobNotice(
                NoticeLevel.NOTE,
                path,
                "is for a cluster whose network plugin enforces NetworkPolicies. On one machine it has no "
                "effect: nothing limits what the process connects to",
            )


def _config_of(model: Model, jobs: Mapping[str, AlignmentJob]) -> Mapping[str, Any]:
    """Return the config of a model; empty if it cannot be read on this machine."""
    if model.config is not None:
        return model.config.architecture
    if model.job is not None and model.job.name in jobs:
        return _config_of(jobs[model.job.name].spec.policy.model, jobs)
    if model.path is not None:
        try:
            return read_config(Path(model.path) / "config.json")
        except PlanError:
            return {}
    return {}


def _is_mixture_of_experts(config: Mapping[str, Any]) -> bool:
    """Return True for a config with routed experts; a family's own number of experts may be left out."""
    numbers = [config.get(key) for key in ("num_experts", "num_local_experts", "n_routed_experts")]
    family = str(config.get("model_type", ""))
    return any(isinstance(number, int) and number > 1 for number in numbers) or (
        family == "mixtral" or family.endswith("_moe")
    )
