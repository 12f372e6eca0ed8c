"""Live panel of a job. Pure: maps a snapshot to a rich renderable."""

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from kubealign.local.display.metric_lines import PHASE_TIMES, STEP_METRICS, format_seconds
from kubealign.local.display.progress_snapshot import ProgressSnapshot
from kubealign.local.processes.supervisor import UnitState

_STYLES = {
    UnitState.READY: "green",
    UnitState.FINISHED: "green",
    UnitState.RESTARTING: "red",
    UnitState.STOPPED: "dim",
}
_MAX_SAMPLE_CHARACTERS = 160
_MAX_PROCESSES = 12


def render_panel(snapshot: ProgressSnapshot, now: float) -> RenderableType:
    """Render the panel. `now`: seconds since the epoch."""
    parts: list[RenderableType] = [_steps(snapshot, now)]
    if snapshot.recent_steps:
        parts.append(_metrics(snapshot))
        parts.append(_times(snapshot))
    if snapshot.validation:
        parts.append(_validation(snapshot))
    parts.append(_processes(snapshot))
    if snapshot.sample is not None:
        parts.append(_sample(snapshot))
    return Panel(Group(*parts), title=_title(snapshot), title_align="left", box=box.ROUNDED)


def _title(snapshot: ProgressSnapshot) -> Text:
    title = Text(snapshot.job, style="bold")
    title.append(f"  {snapshot.progress.phase or 'starting'}", style="cyan")
    if snapshot.progress.waiting_for:
        title.append(f"  waiting for {snapshot.progress.waiting_for}", style="dim")
    return title


def _steps(snapshot: ProgressSnapshot, now: float) -> RenderableType:
    line = Table.grid(padding=(0, 2))
    line.add_column(no_wrap=True)
    line.add_column(width=32)
    line.add_column(no_wrap=True)
    spent = format_seconds(now - snapshot.started_at)
    left = snapshot.remaining_seconds
    line.add_row(
        f"step {snapshot.step}/{snapshot.max_steps or '?'}",
        ProgressBar(
            total=snapshot.max_steps or 1, completed=snapshot.step if snapshot.max_steps else 0, width=32
        ),
        f"{spent} spent" + (f", about {format_seconds(left)} left" if left is not None else ""),
    )
    return line


def _metrics(snapshot: ProgressSnapshot) -> RenderableType:
    newest = snapshot.recent_steps[-1].values
    line = Text()
    for label, name, form in STEP_METRICS:
        if name in newest:
            line.append(f"{label} ", style="dim")
            line.append(form.format(newest[name]) + "  ", style="bold")
    if "reward/mean" in newest and len(snapshot.recent_steps) > 1:
        line.append(_spark([m.values.get("reward/mean", 0.0) for m in snapshot.recent_steps]), style="green")
    return line


def _times(snapshot: ProgressSnapshot) -> RenderableType:
    newest = snapshot.recent_steps[-1].values
    line = Text("time by phase  ", style="dim")
    for label, name in PHASE_TIMES:
        if newest.get(name):
            line.append(f"{label} ", style="dim")
            line.append(format_seconds(newest[name]) + "  ", style="default")
    return line


def _validation(snapshot: ProgressSnapshot) -> RenderableType:
    line = Text("validation  ", style="dim")
    for name, value in list(snapshot.validation.items())[:8]:
        line.append(f"{name.removeprefix('val/')} ", style="dim")
        line.append(f"{value:.3f}  ", style="default")
    return line


def _processes(snapshot: ProgressSnapshot) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("process", "state", "restarts", "weights", "running", "waiting"):
        table.add_column(heading, no_wrap=True)
    for view in snapshot.processes[:_MAX_PROCESSES]:
        heartbeat = snapshot.heartbeats.get(view.name, {})
        table.add_row(
            view.name,
            Text(view.state.lower(), style=_STYLES.get(view.state, "yellow")),
            str(view.restarts) if view.restarts else "",
            *(_cell(heartbeat.get(key)) for key in ("weight_version", "running", "waiting")),
        )
    hidden = len(snapshot.processes) - _MAX_PROCESSES
    if hidden > 0:
        table.add_row(f"and {hidden} more", "", "", "", "", "")
    return table


def _sample(snapshot: ProgressSnapshot) -> RenderableType:
    sample = snapshot.sample
    assert sample is not None
    line = Text("sample  ", style="dim")
    line.append(_one_line(sample.prompt), style="default")
    line.append(_one_line(sample.response), style="bold")
    if sample.reward is not None:
        line.append(f"  {sample.reward:.3f}", style="dim")
    return line


def _cell(value: object) -> str:
    return "" if value is None else str(value)


def _one_line(text: str) -> str:
    line = text.replace("\n", "\\n")
    return line if len(line) <= _MAX_SAMPLE_CHARACTERS else line[: _MAX_SAMPLE_CHARACTERS - 3] + "..."


def _spark(values: list[float]) -> str:
    low, high = min(values), max(values)
    bars = "▁▂▃▄▅▆▇█"
    scale = (len(bars) - 1) / (high - low) if high > low else 0.0
    return "".join(bars[int((value - low) * scale)] for value in values)
