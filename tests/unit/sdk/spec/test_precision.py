"""Precision of the engine, which is the trainer's unless the spec names another."""

from typing import Any

import pytest

from kubealign.spec.job import AlignmentJob
from kubealign.spec.sections.precision import Precision
from support.bad_specs import whole_job


def spec(algorithm: str, changes: dict[str, Any]) -> Any:
    return AlignmentJob.model_validate(whole_job(algorithm, changes)).spec


@pytest.mark.parametrize("engine", ["torch", "triton", "tensorrtLLM", "vllm"])
@pytest.mark.parametrize(
    ("backend", "precision"),
    [
        (backend, precision)
        for backend in ("torch", "megatron")
        for precision in Precision
        if (backend, precision) != ("megatron", Precision.FLOAT16)
    ],
)
def test_an_engine_has_the_trainer_s_precision(engine: str, backend: str, precision: Precision) -> None:
    job = spec(
        "grpo",
        {
            "spec.trainer.backend": {backend: {"precision": precision.value}},
            "spec.rollout.engine": {engine: {"maxSequences": 3}},
        },
    )
    for rollout in (job.effective_rollout, job.own_rollout):
        assert rollout.engine.value.effective_precision is precision
        assert rollout.engine.value.max_sequences == 3


def test_an_engine_keeps_a_precision_of_its_own() -> None:
    job = spec("grpo", {"spec.rollout.engine": {"vllm": {"precision": "BFloat16"}}})
    assert job.trainer.backend.value.precision is Precision.FLOAT32
    assert job.effective_rollout.engine.value.effective_precision is Precision.BFLOAT16


def test_the_job_s_document_keeps_what_its_author_wrote() -> None:
    """So that a later change of the trainer's precision changes the engine's too."""
    job = spec("grpo", {})
    assert job.effective_rollout.engine.value.precision is Precision.FLOAT32
    assert job.rollout.engine.value.precision is None


def test_a_job_without_rollouts_may_have_stored_the_engine_s_former_default() -> None:
    """Check that a job.json of an earlier version, which has every default written out, is still read."""
    stored = {"spec.rollout": {"engine": {"torch": {"precision": "Float32"}}}}
    assert spec("sft", stored).effective_rollout is None
