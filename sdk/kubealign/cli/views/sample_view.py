"""Displays one sample. Pure."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kubealign.cli.terminal import escape_control
from kubealign.cli.views.job_table import format_number
from kubealign.read_model import SampleRecord


def sample_view(sample: SampleRecord) -> RenderableType:
    """Return step and reward, prompt and response, the explanations of rewards, and the rewards by source if
    there are several or one does not apply.
    """
    head = Text.assemble((f"step {sample.step}", "bold"))
    if sample.reward is not None:
        head.append("  reward ", style="dim").append(
            format_number(sample.reward), style=_reward_style(sample.reward)
        )
    weights = str(sample.weight_version) if sample.weight_version >= 0 else "reference"
    head.append("  weights ", style="dim").append(weights)
    if sample.purpose not in ("", "train"):
        head.append(f"  {escape_control(sample.purpose)}", style="cyan")
    if sample.truncated:
        head.append("  truncated at maxTokens", style="yellow")
    if len(sample.rewards) > 1 or None in sample.rewards.values():
        for name, value in sample.rewards.items():
            shown = "does not apply" if value is None else format_number(value)
            head.append(f"  {escape_control(name)} ", style="dim").append(shown)
    texts = Table.grid(padding=(0, 2, 0, 0))
    texts.add_column(style="dim", no_wrap=True)
    texts.add_column(overflow="fold")
    texts.add_row("  prompt", Text(escape_control(sample.prompt)))
    texts.add_row("  response", Text(escape_control(sample.response), style="bold"))
    for name, text in sample.explanations.items():
        texts.add_row(f"  {escape_control(name)}", Text(escape_control(text)))
    return Group(head, texts, Text())


def _reward_style(reward: float) -> str:
    return "green" if reward > 0 else "red" if reward < 0 else "default"
