"""Retention bounds of jobs that learn from given rows."""

from kubealign.spec.job import AlignmentJob
from kubealign_services.runtime.process.bus_load import bus_bounds
from support.tiny_jobs import FROM_CONFIG


def job(**algorithm: object) -> AlignmentJob:
    (name,) = algorithm
    teacher = {"teacher": {"model": FROM_CONFIG}} if name == "distillation" else {}
    return AlignmentJob.model_validate(
        {
            "metadata": {"name": "rows"},
            "spec": {
                "maxSteps": 1,
                "algorithm": algorithm,
                "policy": {"model": FROM_CONFIG},
                "data": {"demonstrations": {"source": {"path": "rows.jsonl"}, "maxTokens": 1000}},
                **teacher,
            },
        }
    )


def test_teacher_scores_of_two_steps_fit() -> None:
    bounds = bus_bounds(job(distillation={"rowsPerStep": 500, "candidates": 64}))
    # A token and its log-probability, eight bytes, for each candidate.
    assert bounds["scores"].size_bytes >= 2 * 500 * 1000 * 64 * 8
    assert bounds["rollouts"].size_bytes < bounds["scores"].size_bytes / 5
    assert bus_bounds(job(sft={"rowsPerStep": 500}))["scores"].size_bytes == bounds["rollouts"].size_bytes
