"""Compares a job with the job from whose checkpoint it starts (spec.checkpoint.from)."""

from typing import Any

from kubealign.spec.job import AlignmentJob
from kubealign.spec.sections.training import Trainer
from kubealign_services.data.preparation import spec_differences


def continuation_differences(parent: AlignmentJob, job: AlignmentJob) -> list[str]:
    """Return the fields, with both values, because of which `job` cannot continue a checkpoint of `parent`.

    Weights and optimiser state fit one architecture, adapter and number of ranks; the position in the data
    fits one data set in one order; the state between steps fits one algorithm. Everything else may differ.
    """
    return list(spec_differences(_continued_fields(parent), _continued_fields(job), ()))


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
        "backend": {
            "name": section.backend.member,
            "megatron": megatron and {name: megatron[name] for name in parallel},
        },
    }
