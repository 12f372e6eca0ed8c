"""Loop of an evaluation: the metrics of each model are recorded before the next one is measured."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kubealign.spec.held_out_rows import HeldOutRows, rows_of_metric
from kubealign.spec.job import AlignmentJobSpec
from kubealign_services.roles.driver.errors import UnrecoverableError
from kubealign_services.roles.driver.evaluation.record import EvaluationRecord
from kubealign_services.roles.driver.state import JobState
from kubealign_services.roles.driver.validation.saved_groups import SavedGroups
from kubealign_services.roles.driver.validation.validation import ValidationSchedule


@dataclass(frozen=True)
class EvaluationRun:
    """One attempt at an evaluation.

    saved: Name of a validation set, None for the rows of validation.data -> responses of the model that is
    being measured.
    """

    spec: AlignmentJobSpec
    validation: ValidationSchedule
    record: EvaluationRecord
    saved: Mapping[str | None, SavedGroups]


async def measure_models(run: EvaluationRun) -> None:
    """Measure every model that is not measured yet, in the order of the steps, and write the result.

    Raises:
        UnrecoverableError: The job cannot succeed.
        ShutdownRequested: The driver was asked to stop.
    """
    evaluate = run.spec.algorithm.evaluate
    assert evaluate is not None
    for step in evaluate.steps:
        if step not in run.record.metrics:
            # The step is the version of the weights, which the rollout workers load on request.
            state = JobState(step=step)
            await run.validation.measure(state)
            _check_measured(run.spec.held_out_rows, step, state.validation)
            await asyncio.to_thread(run.record.add, step, state.validation)
        for saved in run.saved.values():
            await asyncio.to_thread(saved.delete, step)
    await asyncio.to_thread(run.record.finish, run.spec.policy.model, evaluate)


def _check_measured(held_out: Sequence[HeldOutRows], step: int, metrics: Mapping[str, float]) -> None:
    """Raise UnrecoverableError where held-out rows have no metrics of a model."""
    measured = {rows.name for name in metrics if (rows := rows_of_metric(name, held_out)) is not None}
    for rows in held_out:
        if rows.name not in measured:
            field = rows.field("preset" if rows.is_preset else "data")
            raise UnrecoverableError(f"step {step}: no prompt of {field} has a response")
