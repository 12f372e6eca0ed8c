"""Mismatch gate: warns or fails a job whose rollout engine and trainer disagree on log-probabilities."""

import logging

from kubealign.spec.sections.rollout import MismatchAction, MismatchGateSpec
from kubealign_services.batch.packed import Batch
from kubealign_services.roles.driver.errors import UnrecoverableError
from kubealign_services.roles.driver.metrics.batch_metrics import measure_logprob_gap
from kubealign_services.roles.driver.metrics.report import StepRecord

log = logging.getLogger(__name__)

_METRIC = "rollout/logprob_gap_mean"


class LogprobGapGate:
    """Compares the mean log-probability gap of each step with the limits of the spec; None: no limits."""

    def __init__(self, spec: MismatchGateSpec | None) -> None:
        self._spec = spec
        self._is_above = False

    def check(self, batch: Batch, step: StepRecord) -> None:
        """Measure the gap where the batch has old_logprobs and the step has no gap yet, and check it.

        With one update per step and no KL penalty the trainer measures the gap within the step. A warning is
        logged when the gap rises above `mean`, and again only after it was below.

        Raises:
            UnrecoverableError: The gap is above the limit at which the job fails, or not a number.
        """
        if self._spec is None:
            return
        if "old_logprobs" in batch.token_columns and _METRIC not in step.metrics:
            step.add(measure_logprob_gap(batch))
        gap = step.metrics.get(_METRIC)
        if gap is None:
            return
        fails_above = self._spec.effective_fail_mean
        if not gap <= fails_above:
            field = "mean" if self._spec.action is MismatchAction.FAIL else "failMean"
            raise UnrecoverableError(
                f"the log-probabilities of rollout engine and trainer differ by {gap:.4g} nats on average, "
                f"more than rollout.mismatchGate.{field} ({fails_above:g}): the engine does not compute with "
                "the trainer's weights or precision"
            )
        was_above, self._is_above = self._is_above, gap > self._spec.mean
        if self._is_above and not was_above:
            log.warning(
                "the log-probabilities of rollout engine and trainer differ by more than "
                "rollout.mismatchGate.mean",
                extra={
                    "step": step.step,
                    "metric": _METRIC,
                    "value": gap,
                    "limit": self._spec.mean,
                    "fails_above": fails_above,
                },
            )
