"""Validation on held-out rows before, during and after training: loss and sampled responses."""

import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kubealign.spec.held_out_rows import METRIC_PREFIX, HeldOutRows, rows_of_metric
from kubealign.spec.sections.lifecycle import KeepBest
from kubealign.spec.sections.validation import EarlyStopping
from kubealign.spec.sections.validation import Validation as ValidationSpec
from kubealign_services.algorithms.contract import Algorithm
from kubealign_services.batch.auxiliary_sequences import drop_auxiliary
from kubealign_services.data.prepared import PreparedRows
from kubealign_services.roles.driver.errors import UnrecoverableError
from kubealign_services.roles.driver.metrics.report import MetricsReport, StepRecord
from kubealign_services.roles.driver.sources.batch_sources import FrozenModels
from kubealign_services.roles.driver.sources.row_batches import RowBatches
from kubealign_services.roles.driver.state import JobState
from kubealign_services.roles.driver.trainer_client import TrainerClient
from kubealign_services.roles.driver.validation.initial_policy import InitialPolicyResponses
from kubealign_services.roles.driver.validation.metrics import SummaryOptions, summarize_samples
from kubealign_services.roles.driver.validation.samples import ValidationSample


class Measurement(Protocol):
    """One kind of measurement."""

    async def __call__(self, state: JobState) -> dict[str, float]: ...


class HeldOutLoss:
    """The trainer's own objective on the held-out rows, in total and for each value of `group_by`.

    The rows get the same columns as those of a step: scores of frozen models, old log-probabilities,
    advantages.

    Args:
        prefix: First part of the names of the metrics.
    """

    def __init__(
        self,
        trainer: TrainerClient,
        algorithm: Algorithm,
        rows: PreparedRows,
        batches: RowBatches,
        frozen_models: FrozenModels,
        group_by: str | None,
        prefix: str = METRIC_PREFIX,
    ) -> None:
        self._trainer = trainer
        self._algorithm = algorithm
        self._rows = rows
        self._batches = batches
        self._frozen_models = frozen_models
        self._group_by = group_by
        self._prefix = prefix

    async def __call__(self, state: JobState) -> dict[str, float]:
        indices = list(range(len(self._rows)))
        measured = await self._mean_loss(indices, "")
        if self._group_by is not None:
            values = [str(self._rows[index].columns[self._group_by]) for index in indices]
            for value in sorted(set(values)):
                measured.update(
                    await self._mean_loss([i for i in indices if values[i] == value], f"/{value}")
                )
        return measured

    async def _mean_loss(self, indices: list[int], suffix: str) -> dict[str, float]:
        """Return the mean metrics of these rows under the prefix, their name and the suffix."""
        batch = self._batches.build([f"val/{index}" for index in indices])
        unreported = StepRecord(0)  # phases of a measurement are not reported
        await self._frozen_models.add_columns(batch, unreported)
        if self._algorithm.needs_old_logprobs:
            batch.token_columns["old_logprobs"] = await self._trainer.logprobs(batch)
        metrics = self._algorithm.advantages(batch, {})
        metrics |= await self._trainer.evaluate(drop_auxiliary(batch))
        return {
            f"{self._prefix}{name.partition('/')[2] or name}{suffix}": value
            for name, value in metrics.items()
        }


class SampledResponses:
    """Scored responses of the policy to the held-out prompts.

    Each measurement is stored as `step-N.jsonl` in `folder`.

    Args:
        sample: Generates with the weights of the state and returns scored samples.
        metric_names: Source -> name of its metric.
        options: Figures that are reported of each score beside its mean.
        show: Receives the samples for displays.
        prefix: First part of the names of the other metrics.
        initial_policy: Loaded before the first sample; None: nothing is compared with the initial policy.
    """

    def __init__(
        self,
        sample: Callable[[JobState], Awaitable[list[ValidationSample]]],
        metric_names: dict[str, str],
        group_by: str | None,
        folder: Path,
        show: Callable[[JobState, Sequence[ValidationSample]], None],
        options: SummaryOptions,
        prefix: str = METRIC_PREFIX,
        initial_policy: InitialPolicyResponses | None = None,
    ) -> None:
        self._sample = sample
        self._initial_policy = initial_policy
        self._metric_names = metric_names
        self._group_by = group_by
        self._folder = folder
        self._show = show
        self._options = options
        self._prefix = prefix

    async def __call__(self, state: JobState) -> dict[str, float]:
        if self._initial_policy is not None:
            await self._initial_policy.load(state)
        samples = await self._sample(state)
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"step-{state.step:06d}.jsonl"
        path.write_text("".join(sample.to_json() + "\n" for sample in samples))
        self._show(state, samples)
        return summarize_samples(samples, self._metric_names, self._group_by, self._options, self._prefix)


@dataclass(frozen=True)
class ScheduledRows:
    """Held-out rows and their measurements.

    score_metrics: metrics that a measurement lacks where the score applies to no response. initial_policy:
    responses that must be sampled before the first step; None: none.
    """

    rows: HeldOutRows
    measurements: Sequence[Measurement]
    score_metrics: Collection[str] = ()
    initial_policy: InitialPolicyResponses | None = None

    def is_due(self, step: int) -> bool:
        """Return True if a measurement is due after this step."""
        every = self.rows.every_steps
        return every is not None and step % every == 0

    def is_missed(self, state: JobState) -> bool:
        """Return True if an attempt must measure the rows before its first step: with the initial weights, or
        with those of a step whose measurement an earlier attempt has not completed.
        """
        last = state.measured_step(self.rows.name)
        if last is None and self.rows.at_start:
            return True
        return last != state.step > 0 and self.is_due(state.step)


class ValidationSchedule:
    """Schedule of measurements, and early stopping. Without scheduled rows nothing is measured.

    Args:
        keep_best: Names a metric that must be measured too; None: none.
    """

    def __init__(
        self,
        spec: ValidationSpec | None,
        scheduled: Sequence[ScheduledRows],
        report: MetricsReport,
        keep_best: KeepBest | None = None,
    ) -> None:
        self._named_metrics = {}
        self._early_stopping = None if spec is None else spec.early_stopping
        if self._early_stopping is not None:
            self._named_metrics["spec.validation.earlyStopping.metric"] = self._early_stopping.metric
        if keep_best is not None:
            self._named_metrics["spec.checkpoint.keepBest.metric"] = keep_best.metric
        self._scheduled = scheduled
        self._report = report
        self._seconds: float | None = None

    def report_time(self, step: StepRecord) -> None:
        """Add the duration of the measurements since the previous step, if there were any."""
        if self._seconds is not None:
            step.add({"seconds/validation": self._seconds})
        self._seconds = None

    async def measure_at_start(self, state: JobState) -> None:
        """Measure before the first step of an attempt what the spec asks for and no attempt has measured.

        The initial policy's responses are sampled before the first step of the job, whatever is measured.
        """
        for entry in self._scheduled:
            if entry.initial_policy is not None:
                await entry.initial_policy.load(state)
        await self.measure(state, [entry for entry in self._scheduled if entry.is_missed(state)])

    async def measure_due(self, state: JobState) -> None:
        """Measure what is due after a step."""
        await self.measure(state, [entry for entry in self._scheduled if entry.is_due(state.step)])

    async def measure_at_end(self, state: JobState) -> None:
        """Measure after the last step what was not measured after it."""
        await self.measure(
            state,
            [
                entry
                for entry in self._scheduled
                if entry.rows.at_end and state.measured_step(entry.rows.name) != state.step
            ],
        )

    async def measure(self, state: JobState, due: Sequence[ScheduledRows] | None = None) -> None:
        """Measure now, write the metrics, and set `state.finished` if they end the job.

        Args:
            due: Rows that are measured; None: all.
        """
        due = self._scheduled if due is None else due
        if not due:
            return
        metrics: dict[str, float] = {}
        started_at = time.perf_counter()
        for entry in due:
            for measurement in entry.measurements:
                metrics.update(await measurement(state))
        state.add_validation([entry.rows.name for entry in due], metrics)
        self._report.write(state.step, metrics)
        self._seconds = (self._seconds or 0.0) + time.perf_counter() - started_at
        self._check_named_metrics(due, metrics)
        stopping = self._early_stopping
        if stopping is not None and stopping.metric in metrics:
            apply_early_stopping(stopping, metrics[stopping.metric], state)

    def _check_named_metrics(self, measured: Sequence[ScheduledRows], metrics: Mapping[str, float]) -> None:
        """Raise UnrecoverableError where the spec names a metric that its rows do not have."""
        for field, metric in self._named_metrics.items():
            rows = rows_of_metric(metric, [entry.rows for entry in self._scheduled])
            for entry in measured:
                if entry.rows is rows and metric not in metrics and metric not in entry.score_metrics:
                    names = sorted(name for name in metrics if name.startswith(entry.rows.metric_prefix))
                    raise UnrecoverableError(
                        f"{field}: {metric} is not measured; there are {', '.join(names)}"
                    )


def apply_early_stopping(stopping: EarlyStopping, value: float, state: JobState) -> None:
    """Record a value of the metric, and set `state.finished` if it ends the job.

    The initial weights end no job, but their value counts as the first one.
    """
    patience = stopping.patience
    if patience is not None:
        best = state.best_validation
        if best is None or patience.direction.is_better(value, best, patience.margin):
            state.best_validation, state.validations_since_best = value, 0
        else:
            state.validations_since_best += 1
    if state.step == 0:
        return
    if stopping.target is not None and stopping.target.is_reached(value):
        state.finished = f"{stopping.metric} reached {value:.4g}"
    elif patience is not None and state.validations_since_best >= patience.validations:
        state.finished = (
            f"{stopping.metric} has not been better than {state.best_validation:.4g} for "
            f"{state.validations_since_best} validations"
        )
