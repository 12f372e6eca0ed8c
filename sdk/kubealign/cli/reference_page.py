"""Generates docs/cli.md from the commands: `python -m kubealign.cli.reference_page [--write PATH]`."""

import re
from collections.abc import Iterator
from enum import Enum
from typing import Any

from typer.main import get_command

from kubealign.cli.command import BACKEND_OPTIONS
from kubealign.cli.exit_codes import EXIT_CODE_MEANINGS
from kubealign.cli.main import COMMANDS, app
from kubealign.generated_file import print_or_write
from kubealign.spec.field_lookup import strip_optional

_INTRODUCTION = """\
# The command line

<!-- Generated from sdk/kubealign/cli by `python -m kubealign.cli.reference_page --write docs/cli.md`. -->

The commands are available as `kubealign COMMAND`, and as a kubectl plugin: `kubectl align COMMAND`. `-h`
after a command lists its options.

```
kubealign init ppo > job.yaml       # write a commented job to start from
kubealign validate job.yaml         # list all errors, each with its remedy
kubealign run job.yaml              # run on this machine in the foreground
kubealign submit job.yaml           # run on the cluster; with --local on this machine in the background
kubealign list
kubealign logs JOB -f
```

## Which jobs

One rule selects this machine or a cluster:

1. `--runs-dir FOLDER` selects the jobs of this machine in that folder, `--local` those in `./runs`.
2. `--kubeconfig FILE` and `--context NAME` select a cluster.
3. Without any of them: this machine if the environment variable `KUBEALIGN_RUNS_DIR` names a folder; else the
   cluster, located in the same way as by kubectl (`KUBECONFIG`, `~/.kube/config`, in a pod its service
   account).

Every command that accesses jobs has these options:
"""
_OUTPUT_SECTION = """\
## Output

Tables are for people: on a terminal they are coloured and wrapped at its width, otherwise they are plain
lines. `--no-color` or the environment variable `NO_COLOR` disables colours. Scripts should use `-o json`,
`-o yaml` (the Kubernetes resource; a list is an AlignmentJobList) or `-o name`. Requested output goes to
stdout, everything else to stderr. Control characters in logs, samples and messages are escaped.

## Exit codes

| Code | Meaning |
| --- | --- |
"""


def build_page() -> str:
    """Return the content of docs/cli.md."""
    group: Any = get_command(app)
    commands = {name: group.commands[name] for panel in COMMANDS.values() for name in panel}
    any_site = next(command for command in commands.values() if _uses_backend(command))
    shared = [parameter for parameter in any_site.params if parameter.name in BACKEND_OPTIONS]
    parts = [_INTRODUCTION, *_options_table(shared), "", _OUTPUT_SECTION.rstrip("\n")]
    parts += [f"| {int(code)} | {meaning} |" for code, meaning in EXIT_CODE_MEANINGS.items()]
    for panel, names in COMMANDS.items():
        parts += ["", f"## {panel}"]
        for name in names:
            parts += ["", *_command_section(name, commands[name])]
    return "\n".join(parts) + "\n"


def _uses_backend(command: Any) -> bool:
    return set(BACKEND_OPTIONS) <= {parameter.name for parameter in command.params}


def _command_section(name: str, command: Any) -> Iterator[str]:
    own = [p for p in command.params if not (_uses_backend(command) and p.name in BACKEND_OPTIONS)]
    arguments = [p for p in own if p.param_type_name == "argument"]
    words = " ".join(_argument_name(argument) for argument in arguments)
    yield f"### {name}"
    yield ""
    options = "[OPTIONS]" if len(own) > len(arguments) else ""
    yield f"`{' '.join(part for part in ('kubealign', name, words, options) if part)}`"
    yield ""
    yield "\n\n".join(" ".join(part.split()) for part in _help_text(command).split("\n\n"))
    documented = sorted((p for p in own if p.help), key=lambda p: p.param_type_name != "argument")
    if documented:
        yield ""
        yield from _options_table(documented)
    if _uses_backend(command):
        yield ""
        yield "It also has the options that select [which jobs](#which-jobs)."


def _help_text(command: Any) -> str:
    # Shell lines are kept as lines.
    return re.sub(
        r"^ *((?:bash|zsh|fish): .*|kubealign .*)$", r"\n`\1`\n", command.help or "", flags=re.MULTILINE
    )


def _argument_name(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())


def _options_table(parameters: Any) -> list[str]:
    lines = ["| Option | Default | Meaning |", "| --- | --- | --- |"]
    for parameter in parameters:
        if parameter.param_type_name == "argument":
            lines.append(f"| `{_argument_name(parameter).strip('[]')}` | | {parameter.help} |")
            continue
        names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
        value = "" if parameter.is_flag else f" {_value_name(parameter)}"
        text = (parameter.help or "").replace("|", "\\|")
        lines.append(f"| {names}{value} | {_default_text(parameter)} | {text} |")
    return lines


def _value_name(parameter: Any) -> str:
    kind = strip_optional(parameter.type_descriptor.annotation)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return " or ".join(f"`{choice.value}`" for choice in kind)
    return str(parameter.metavar or "NUMBER")


def _default_text(parameter: Any) -> str:
    value = parameter.default
    if value is None or value is False or value in ("", [], ()) or callable(value):
        return ""
    return f"`{getattr(value, 'value', value)}`"


if __name__ == "__main__":
    print_or_write(build_page)
