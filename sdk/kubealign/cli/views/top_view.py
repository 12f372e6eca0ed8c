"""State and rendering of `kubealign top`."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.text import Text

from kubealign.cli.terminal import escape_control
from kubealign.cli.views.job_table import format_number, format_steps, phase_text
from kubealign.cli.views.process_table import process_table
from kubealign.client.backends.base import JobBackend
from kubealign.client.records import JobRecord, JobRef, ProcessRecord
from kubealign.local.display.metric_lines import PHASE_TIMES, format_seconds, format_step
from kubealign.read_model import STREAM_START, StepMetrics
from kubealign.spec.status import JobPhase

_RECENT_STEPS = 20
_PAGE_SIZE = 1000
_BAR_WIDTH = 20
#: (label, metric) of the last step, in display order.
_THROUGHPUT = (
    ("tokens/s", "tokens_per_second"),
    ("tokens/step", "batch/tokens"),
    ("sequences", "batch/sequences"),
    ("response length", "response/length"),
)
_QUEUE = (
    ("groups in flight", "rollout/groups_in_flight"),
    ("waiting", "rollout/groups_waiting"),
    ("staleness", "rollout/staleness"),
    ("at most", "rollout/staleness_max"),
    ("log-prob gap", "rollout/logprob_gap_mean"),
    ("discarded groups", "data/discarded_groups"),
    ("given-up prompts", "data/given_up_prompts"),
)
#: Only shown if not zero.
_NONZERO_ONLY = ("data/discarded_groups", "data/given_up_prompts")


@dataclass
class TopState:
    """State of a job, filled by `refresh`. Each step is read once."""

    record: JobRecord = field(default_factory=lambda: JobRecord({}))
    processes: Sequence[ProcessRecord] = ()
    recent: deque[StepMetrics] = field(default_factory=lambda: deque(maxlen=_RECENT_STEPS))
    #: Error that prevents reading metrics; empty if there is none.
    metrics_error: str = ""
    _after: str = STREAM_START

    async def refresh(self, backend: JobBackend, ref: JobRef) -> None:
        """Read everything again. Raises JobNotFound; without metrics, the rest is shown."""
        from kubealign.client.errors import Forbidden, Unauthenticated, Unavailable

        self.record = await backend.get(ref)
        self.processes = await backend.processes(ref)
        try:
            while page := await backend.metrics(ref, self._after, _PAGE_SIZE):
                # Validation entries are not steps.
                self.recent.extend(m for m in page if "seconds/step" in m.values)
                self._after = page[-1].entry
            self.metrics_error = ""
        except (Forbidden, Unauthenticated, Unavailable) as error:
            self.metrics_error = str(error)

    @property
    def is_finished(self) -> bool:
        return self.record.phase is not None and self.record.phase.is_final


def render_top(state: TopState) -> RenderableType:
    """Render the state from top to bottom."""
    parts: list[RenderableType] = [_header(state)]
    message = state.record.status.message
    if message:
        parts.append(Text(escape_control(message), style="dim"))
    if state.metrics_error:
        parts.append(Text(f"no metrics: {escape_control(state.metrics_error)}", style="yellow"))
    if state.recent:
        parts += [_metrics_line("throughput", state, _THROUGHPUT), _times_line(state.recent[-1])]
        if any(name in state.recent[-1].values for _, name in _QUEUE):
            parts.append(_metrics_line("queue", state, _QUEUE))
    if state.processes:
        parts += [Text(), process_table(state.processes)]
    return Group(*parts)


def format_line(state: TopState) -> str:
    """Return the last step as one line; before the first step, what the job waits for."""
    record = state.record
    if state.recent and not state.is_finished:
        return f"{record.name}: {format_step(state.recent[-1], record.status.max_steps)}"
    message = f": {escape_control(record.status.message)}" if record.status.message else ""
    return f"{record.name}: {record.phase or 'not reconciled yet'} {format_steps(record)}{message}"


def _header(state: TopState) -> Text:
    status = state.record.status
    parts = [
        Text(state.record.name, style="bold"),
        phase_text(str(state.record.phase or "")),
        Text(f"step {format_steps(state.record)}"),
    ]
    if status.max_steps:
        parts.append(_progress_bar((status.step or 0) / status.max_steps))
    for label, value in (("reward", status.reward), ("KL", status.kl)):
        if value is not None:
            parts.append(Text.assemble((f"{label} ", "dim"), (format_number(value), "bold")))
    left = _remaining_seconds(state)
    if left is not None:
        parts.append(Text(f"about {format_seconds(left)} left"))
    return Text("  ").join(parts)


def _progress_bar(share: float) -> Text:
    done = round(_BAR_WIDTH * min(1.0, max(0.0, share)))
    return Text.assemble(("━" * done, "green"), ("━" * (_BAR_WIDTH - done), "dim"))


def _remaining_seconds(state: TopState) -> float | None:
    """Return the estimated remaining seconds, by the mean time of the last steps."""
    status = state.record.status
    times = [metrics.values["seconds/step"] for metrics in state.recent]
    if not times or not status.max_steps or status.step is None or status.phase is not JobPhase.RUNNING:
        return None
    return (status.max_steps - status.step) * sum(times) / len(times)


def _metrics_line(title: str, state: TopState, metrics: Sequence[tuple[str, str]]) -> Text:
    result = Text.assemble((f"{title:<11}", "dim"))
    for label, name in metrics:
        value = state.recent[-1].values.get(name)
        if value is not None and (value or name not in _NONZERO_ONLY):
            result.append(f"{label} ", style="dim").append(f"{_format_value(float(value))}   ")
    return result


def _format_value(value: float) -> str:
    if value.is_integer() or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else format_number(value)


def _times_line(metrics: StepMetrics) -> Text:
    result = Text.assemble(
        (f"{'step time':<11}", "dim"), (f"{format_seconds(metrics.values['seconds/step'])}   ", "bold")
    )
    for label, name in PHASE_TIMES:
        if metrics.values.get(name):
            result.append(f"{label} ", style="dim").append(f"{format_seconds(metrics.values[name])}   ")
    return result
