"""State and rendering of `kubealign top`."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.text import Text

from kubealign.cli.job_table import number, phase_text, steps
from kubealign.cli.process_table import process_rows
from kubealign.cli.terminal import safe
from kubealign.client.records import JobRecord, JobRef, ProcessRecord
from kubealign.client.site import Site
from kubealign.local.lines import TIMES, seconds, step_line
from kubealign.read_model import BEGINNING, StepMetrics
from kubealign.spec.status import JobPhase

_RECENT_STEPS = 20
_PAGE = 1000
_BAR = 20
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
_ONLY_WHERE_ANY = ("data/discarded_groups", "data/given_up_prompts")


@dataclass
class Picture:
    """State of a job, filled by `refresh`. Each step is read once."""

    record: JobRecord = field(default_factory=lambda: JobRecord({}))
    processes: Sequence[ProcessRecord] = ()
    recent: deque[StepMetrics] = field(default_factory=lambda: deque(maxlen=_RECENT_STEPS))
    #: Error that prevents reading metrics; empty if there is none.
    figures_away: str = ""
    _after: str = BEGINNING

    async def look(self, site: Site, ref: JobRef) -> None:
        """Read everything again. Raises JobNotFound; without metrics, the rest is shown."""
        from kubealign.client.errors import Forbidden, Unauthenticated, Unavailable

        self.record = await site.get(ref)
        self.processes = await site.processes(ref)
        try:
            while True:
                page = await site.metrics(ref, self._after, _PAGE)
                # Validation entries are not steps.
                self.recent.extend(m for m in page if "seconds/step" in m.values)
                self._after = page[-1].entry if page else self._after
                if len(page) < _PAGE:
                    break
            self.figures_away = ""
        except (Forbidden, Unauthenticated, Unavailable) as error:
            self.figures_away = str(error)

    @property
    def over(self) -> bool:
        return self.record.phase is not None and self.record.phase.final


def picture(seen: Picture) -> RenderableType:
    """Render the state from top to bottom."""
    parts: list[RenderableType] = [_head(seen)]
    message = seen.record.status.message
    if message:
        parts.append(Text(safe(message), style="dim"))
    if seen.figures_away:
        parts.append(Text(f"no metrics: {safe(seen.figures_away)}", style="yellow"))
    if seen.recent:
        parts += [_line("throughput", seen, _THROUGHPUT), _times(seen.recent[-1])]
        if any(name in seen.recent[-1].values for _, name in _QUEUE):
            parts.append(_line("queue", seen, _QUEUE))
    if seen.processes:
        parts += [Text(), process_rows(seen.processes)]
    return Group(*parts)


def line(seen: Picture) -> str:
    """Return the last step as one line; before the first step, what the job waits for."""
    record = seen.record
    if seen.recent and not seen.over:
        return f"{record.name}: {step_line(seen.recent[-1], record.status.max_steps or 0)}"
    message = f": {safe(record.status.message)}" if record.status.message else ""
    return f"{record.name}: {record.phase or 'not reconciled yet'} {steps(record)}{message}"


def _head(seen: Picture) -> Text:
    status = seen.record.status
    parts = [
        Text(seen.record.name, style="bold"),
        phase_text(str(seen.record.phase or "")),
        Text(f"step {steps(seen.record)}"),
    ]
    if status.max_steps:
        parts.append(_bar((status.step or 0) / status.max_steps))
    for label, value in (("reward", status.reward), ("KL", status.kl)):
        if value is not None:
            parts.append(Text.assemble((f"{label} ", "dim"), (number(value), "bold")))
    left = _left(seen)
    if left is not None:
        parts.append(Text(f"about {seconds(left)} left"))
    return Text("  ").join(parts)


def _bar(share: float) -> Text:
    done = round(_BAR * min(1.0, max(0.0, share)))
    return Text.assemble(("━" * done, "green"), ("━" * (_BAR - done), "dim"))


def _left(seen: Picture) -> float | None:
    """Return the estimated remaining seconds, by the mean time of the last steps."""
    status = seen.record.status
    times = [metrics.values["seconds/step"] for metrics in seen.recent]
    if not times or not status.max_steps or status.step is None or status.phase is not JobPhase.RUNNING:
        return None
    return (status.max_steps - status.step) * sum(times) / len(times)


def _line(title: str, seen: Picture, figures: Sequence[tuple[str, str]]) -> Text:
    result = Text.assemble((f"{title:<11}", "dim"))
    for label, name in figures:
        value = seen.recent[-1].values.get(name)
        if value is not None and (value or name not in _ONLY_WHERE_ANY):
            result.append(f"{label} ", style="dim").append(f"{_shown(float(value))}   ")
    return result


def _shown(value: float) -> str:
    if value.is_integer() or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else number(value)


def _times(metrics: StepMetrics) -> Text:
    result = Text.assemble(
        (f"{'step time':<11}", "dim"), (f"{seconds(metrics.values['seconds/step'])}   ", "bold")
    )
    for label, name in TIMES:
        if metrics.values.get(name):
            result.append(f"{label} ", style="dim").append(f"{seconds(metrics.values[name])}   ")
    return result
