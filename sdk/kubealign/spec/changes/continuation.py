"""Compares a job with the job from whose checkpoint it starts (spec.checkpoint.from). Pure."""

from typing import Any

from kubealign.spec.changes.differences import FieldDifference, field_differences
from kubealign.spec.job import AlignmentJob
from kubealign.spec.sections.training import Trainer

#: Start of a field's path -> reason why it must be the parent's; the first match counts.
_REASONS = (
    ("spec.seed", "the order of the data follows from the seed"),
    ("spec.policy", "the checkpoint holds the weights of this model, trained with its tokenizer"),
    ("spec.data", "the position in the data is one in these rows, each of which is trained once"),
    ("spec.algorithm", "the checkpoint holds the state of this algorithm alone"),
    ("spec.critic.model", "the checkpoint holds the weights of this critic"),
)
#: End of a section of trainer or critic -> reason.
_TRAINED_REASONS = {
    "ranks": "each rank loads the shard of its own number",
    "lora": "the checkpoint holds the weights of this adapter",
    "optimizer": "the checkpoint holds the state of this optimiser",
    "backend": "the checkpoint holds shards of this backend and parallel layout",
}


def continuation_problems(parent: AlignmentJob, job: AlignmentJob) -> list[FieldDifference]:
    """Return the fields because of which `job` cannot continue a checkpoint of `parent`.

    Weights and optimiser state fit one architecture, adapter, kind of optimiser and number of ranks; the
    position in the data fits one data set in one order; the state between steps fits one algorithm.
    Everything else may differ.
    """
    return list(field_differences(_continued_fields(parent), _continued_fields(job), ("spec",)))


def continuation_differences(parent: AlignmentJob, job: AlignmentJob) -> list[str]:
    """Return `continuation_problems` as text: the field, both values and the reason."""
    return [
        f"{problem} ({continuation_reason(problem.path)})" for problem in continuation_problems(parent, job)
    ]


def continuation_reason(path: str) -> str:
    """Return the reason why the field at `path`, one of `continuation_problems`, must be the parent's."""
    for start, reason in _REASONS:
        if path.startswith(start):
            return reason
    section = path.removeprefix("spec.").split(".")
    return _TRAINED_REASONS.get(section[1] if len(section) > 1 else "", "the checkpoint holds no such state")


def _continued_fields(job: AlignmentJob) -> dict[str, Any]:
    spec = job.spec
    dumped = spec.model_dump(mode="json", by_alias=True)
    critic = spec.effective_critic
    fields = {
        "seed": spec.seed,
        "policy": dumped["policy"],
        "data": dumped["data"],
        "algorithm": {"name": spec.algorithm.member, "kl": _adaptive_kl(job)},
        "trainer": _trained_model(spec.effective_trainer),
        "critic": None,
    }
    if critic is not None:
        # A null model stands for a default that is compared with the policy or the rewards.
        model = critic.model_dump(mode="json", by_alias=True)["model"]
        fields["critic"] = {**_trained_model(critic), "model": model}
    return fields


def _adaptive_kl(job: AlignmentJob) -> str | None:
    """Return "adaptive" for an algorithm that carries an adaptive KL coefficient from step to step."""
    kl = getattr(job.spec.algorithm.value, "kl", None)
    return None if getattr(kl, "adaptive", None) is None else "adaptive"


def _trained_model(section: Trainer) -> dict[str, Any]:
    """Return the fields of a trainer or a critic that decide which shards it can load."""
    dumped = section.model_dump(mode="json", by_alias=True)
    megatron = dumped["backend"]["megatron"]
    parallel = ("tensorParallel", "pipelineParallel", "expertParallel")
    return {
        "ranks": dumped["ranks"],
        "lora": dumped.get("lora"),
        "optimizer": {
            "adamW": {"states": dumped["optimizer"]["adamW"]["states"]},
            # Rates, decay rates and iterations of Muon are no part of its state.
            "muon": None if section.optimizer.muon is None else {},
        },
        "backend": {
            "name": section.backend.member,
            "megatron": megatron and {name: megatron[name] for name in parallel},
        },
    }
