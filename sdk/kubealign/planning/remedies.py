"""Remedies for a job that does not fit: each proposal is planned, and the first one that fits is reported."""

from collections.abc import Callable, Iterator, Sequence
from math import lcm

from kubealign.planning.errors import PlanError
from kubealign.planning.job_plan import JobPlan
from kubealign.planning.memory.peak import ProcessRequirements
from kubealign.role_specs import ROLE_SPECS, role_of_group, teacher_group
from kubealign.spec.job import AlignmentJob
from kubealign.spec.sections.engines import (
    TensorRTLLMEngineSpec,
    TorchEngineSpec,
    TritonEngineSpec,
    VllmEngineSpec,
)
from kubealign.spec.sections.megatron import MegatronBackendSpec, Recompute
from kubealign.spec.sections.precision import Precision
from kubealign.spec.sections.training import TorchBackendSpec, Trainer

#: Path in the document -> new value.
Changes = dict[str, object]


def find_remedies(
    job: AlignmentJob, plan: JobPlan, replan: Callable[[AlignmentJob], JobPlan], memory: int
) -> dict[str, str]:
    """Return, by process group that does not fit, the field values that make the group fit.

    Args:
        replan: Plans a changed job.
    """
    remedy_by_group = {}
    for need in plan.requirements:
        if need.peak.total > memory:
            remedy_by_group[need.group] = _find_remedy(job, need, replan, memory)
    return remedy_by_group


def _find_remedy(
    job: AlignmentJob, need: ProcessRequirements, again: Callable[[AlignmentJob], JobPlan], memory: int
) -> str:
    for changes in _proposals(job, need):
        try:
            changed = _apply_changes(job, changes)
            after = next(each for each in again(changed).requirements if each.group == need.group)
        except (PlanError, ValueError, StopIteration):
            continue
        if after.peak.total <= memory:
            return "set " + ", ".join(f"{path}: {_format_value(value)}" for path, value in changes.items())
    return f"no known change makes it fit: {_largest_part(need)}"


def _largest_part(need: ProcessRequirements) -> str:
    parts = need.peak.parts
    name = max(parts, key=lambda part: parts[part])
    return f"most of it is {name}"


def _format_value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _proposals(job: AlignmentJob, need: ProcessRequirements) -> Iterator[Changes]:
    """Yield proposals in order of increasing cost."""
    spec = job.spec
    is_trained = ROLE_SPECS[role_of_group(need.group)].trains
    if need.group == "trainer":
        yield from _trainer_proposals("spec.trainer", spec.trainer)
    elif need.group == "critic" and spec.effective_critic is not None:
        yield from _trainer_proposals("spec.critic", spec.effective_critic)
    elif need.group == "rollout":
        yield from _engine_proposals(job)
    # Placement WithTrainer or WithCritic cannot help: the weights and the optimizer of that group are added.
    changes: Changes = {}
    if spec.trainer.backend.value.precision is Precision.FLOAT32 and not is_trained:
        member = spec.trainer.backend.member
        changes = {f"spec.trainer.backend.{member}.precision": Precision.BFLOAT16.value}
        yield dict(changes)
    for group, path, ranks in _scorers(job):
        if group == need.group:
            for factor in (2, 4, 8, 16):
                yield changes | {f"{path}.ranks": ranks * factor}


def _scorers(job: AlignmentJob) -> Iterator[tuple[str, str, int]]:
    """Yield (group, path in the document, ranks) of the models in processes of their own."""
    spec = job.spec
    for name, scorer in (("reference", spec.effective_reference), ("teacher", spec.teacher)):
        if scorer is not None:
            yield name, f"spec.{name}", scorer.ranks
    for index, teacher in enumerate(spec.teachers):
        yield teacher_group(teacher.name), f"spec.teachers[{index}]", teacher.ranks
    for index, reward in enumerate(spec.rewards):
        yield f"reward-{reward.name}", f"spec.rewards[{index}]", reward.ranks


def _trainer_proposals(where: str, trainer: Trainer) -> Iterator[Changes]:
    backend = trainer.backend.value
    assert isinstance(backend, TorchBackendSpec | MegatronBackendSpec)
    path = f"{where}.backend.{trainer.backend.member}"
    changes: Changes = {}
    if backend.precision is Precision.FLOAT32:
        changes[f"{path}.precision"] = Precision.BFLOAT16.value
        yield dict(changes)
    recompute = _recompute_changes(path, backend)
    if recompute:
        changes |= recompute
        yield dict(changes)
    small: Changes = {}
    if backend.microbatch_tokens > 2048:
        small = {f"{path}.microbatchTokens": 2048}
        yield changes | small
    if isinstance(backend, TorchBackendSpec):
        yield from _context_proposals(where, changes | small, trainer, (trainer.ranks,))
        for factor in (2, 4, 8, 16, 32, 64):
            yield changes | {f"{where}.ranks": trainer.ranks * factor}
        more = [lcm(trainer.ranks, factor) for factor in (2, 4, 8, 16)]
        yield from _context_proposals(where, changes | small, trainer, more)
        for tensor, pipeline in ((8, 1), (8, 2), (8, 4), (8, 8), (8, 16)):
            yield {
                f"{where}.ranks": max(trainer.ranks, tensor * pipeline),
                f"{where}.backend": {
                    "megatron": {
                        "precision": Precision.BFLOAT16.value,
                        "tensorParallel": tensor,
                        "pipelineParallel": pipeline,
                        "recompute": Recompute.LAYERS.value,
                    }
                },
            }
        return
    if not backend.distributed_optimizer:
        changes[f"{path}.distributedOptimizer"] = True
        yield dict(changes)
    for tensor in (2, 4, 8):
        for pipeline in (1, 2, 3, 4, 6, 7, 8, 9, 12, 14, 16, 18):
            if tensor >= backend.tensor_parallel and pipeline >= backend.pipeline_parallel:
                each = tensor * pipeline * backend.context_parallel
                yield changes | {
                    f"{path}.tensorParallel": tensor,
                    f"{path}.pipelineParallel": pipeline,
                    f"{where}.ranks": -(-trainer.ranks // each) * each,
                }


def _context_proposals(
    where: str, changes: Changes, trainer: Trainer, allowed_ranks: Sequence[int]
) -> Iterator[Changes]:
    """Yield proposals that several ranks share the tokens of each pack: the longest sequence alone may not
    fit, however many ranks share the weights.
    """
    torch = trainer.backend.torch
    assert torch is not None
    for ranks in allowed_ranks:
        for context in (2, 4, 8, 16):
            if context > torch.context_parallel and ranks % context == 0:
                more = {f"{where}.ranks": ranks} if ranks != trainer.ranks else {}
                yield changes | more | {f"{where}.backend.torch.contextParallel": context}


def _recompute_changes(path: str, backend: TorchBackendSpec | MegatronBackendSpec) -> Changes:
    if isinstance(backend, TorchBackendSpec):
        return {} if backend.gradient_checkpointing else {f"{path}.gradientCheckpointing": True}
    if backend.recompute is Recompute.LAYERS:
        return {}
    return {f"{path}.recompute": Recompute.LAYERS.value}


def _engine_proposals(job: AlignmentJob) -> Iterator[Changes]:
    engine = job.spec.rollout.engine.value
    path = f"spec.rollout.engine.{_engine_alias(job)}"
    changes: Changes = {}
    if engine.precision is Precision.FLOAT32:
        changes[f"{path}.precision"] = Precision.BFLOAT16.value
    # The trainer has the engine's precision: a mix makes their log-probabilities differ.
    backend = job.spec.trainer.backend
    if backend.value.precision is Precision.FLOAT32:
        changes[f"spec.trainer.backend.{backend.member}.precision"] = Precision.BFLOAT16.value
    if changes:
        yield dict(changes)
    if isinstance(engine, TorchEngineSpec | TritonEngineSpec):
        for sequences in (64, 32, 16):
            if sequences < engine.max_sequences:
                yield changes | {f"{path}.maxSequences": sequences}
    if isinstance(engine, TorchEngineSpec | TensorRTLLMEngineSpec | VllmEngineSpec):
        for tensor in (2, 4, 8):
            if tensor > engine.tensor_parallel:
                yield changes | {f"{path}.tensorParallel": tensor}
    if isinstance(engine, TensorRTLLMEngineSpec | VllmEngineSpec):
        for pipeline in (2, 4):
            yield changes | {f"{path}.tensorParallel": 8, f"{path}.pipelineParallel": pipeline}


def _engine_alias(job: AlignmentJob) -> str:
    member = job.spec.rollout.engine.member
    return "tensorrtLLM" if member == "tensorrt_llm" else str(member)


def _apply_changes(job: AlignmentJob, changes: Changes) -> AlignmentJob:
    """Return the job with changed values, validated. Raises SpecErrors."""
    from kubealign.spec.loading.loader import job_from_document

    document = job.model_dump(mode="json", by_alias=True, exclude_unset=True)
    for path, value in changes.items():
        _set_value(document, path.replace("[", ".").replace("]", "").split("."), value)
    return job_from_document(document)


def _set_value(document: dict[str, object], names: list[str], value: object) -> None:
    at: object = document
    for name in names[:-1]:
        if isinstance(at, list):
            at = at[int(name)]
        else:
            assert isinstance(at, dict)
            if at.get(name) is None:
                at[name] = {}
            at = at[name]
    if isinstance(at, list):
        at[int(names[-1])] = value
    else:
        assert isinstance(at, dict)
        at[names[-1]] = value
