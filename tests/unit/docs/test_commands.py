"""Commands and options in the documentation exist."""

from pathlib import Path

import pytest
import typer

from kubealign.cli.main import app
from support.doc_blocks import PAGES, ROOT, commands, simple_commands

#: Exception of the command line for invalid words.
REFUSED = typer.BadParameter.__bases__[0]


def parse(words: list[str]) -> None:
    """Parse these words as a command line without running it. Raises UsageError."""
    group = typer.main.get_command(app)
    context = group.make_context("kubealign", list(words))
    name, command, rest = group.resolve_command(context, [*context._protected_args, *context.args])
    assert command is not None, f"there is no command {name}"
    command.make_context(name, rest, parent=context)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_on_the_page_is_valid(page: Path) -> None:
    refused = []
    for block, words in commands(page):
        try:
            parse(list(words))
        except typer.Exit:
            pass
        except (REFUSED, AssertionError) as error:
            refused.append(f"{block}: kubealign {' '.join(words)}: {error}")
    assert not refused, "\n".join(refused)


def test_the_pages_show_commands() -> None:
    shown = {words[0] for page in PAGES for _, words in commands(page)}
    assert {"init", "validate", "run", "submit", "list", "logs", "metrics", "samples", "top"} <= shown


@pytest.mark.parametrize("words", [["fly"], ["list", "--fly"], ["logs"], ["wait", "x", "--for", "Christmas"]])
def test_a_wrong_command_would_be_found(words: list[str]) -> None:
    with pytest.raises(REFUSED):
        parse(words)


def test_a_shell_line_is_split_into_commands() -> None:
    line = "source <(kubealign completion bash)  && kubealign init ppo > job.yaml # a job"
    assert list(simple_commands(line)) == [
        ["source"],
        ["kubealign", "completion", "bash"],
        ["kubealign", "init", "ppo"],
        ["job.yaml"],
    ]
