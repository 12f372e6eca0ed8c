"""How commands end when something is in the way: one clear text on stderr, and an exit code."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import NoReturn

import typer


class ExitCode(IntEnum):
    """What a command's exit code means."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    INVALID_JOB = 3
    TIMEOUT = 124
    INTERRUPTED = 130


#: For the page about the command line.
MEANINGS = {
    ExitCode.DONE: "done; for `run` and `wait`: the job succeeded",
    ExitCode.FAILED: "it did not work: the job failed, is not there, or its site refused or did not answer",
    ExitCode.USAGE: "the command itself is wrong: an unknown option, a missing argument",
    ExitCode.INVALID_JOB: "a job, or a change to one, is invalid; each error names its field",
    ExitCode.TIMEOUT: "`wait` gave up: the time was over",
    ExitCode.INTERRUPTED: "Ctrl-C",
}


def refuse(message: str, code: ExitCode = ExitCode.FAILED) -> NoReturn:
    """End the command with a message on stderr; red on a terminal."""
    from kubealign.cli.terminal import console, safe

    console(stderr=True).print(safe(message), style="red", soft_wrap=True, markup=False, highlight=False)
    raise typer.Exit(code)


@contextmanager
def told() -> Iterator[None]:
    """Whatever a client or a runner raises within becomes a message and an exit code."""
    # A command that needs no site does not pay for what a site needs.
    from kubealign.client.errors import JobInvalid, KubealignError, WaitTimeout
    from kubealign.local.failure import RunFailed
    from kubealign.spec.errors import SpecErrors

    try:
        yield
    except SpecErrors as errors:
        invalid(errors)
    except JobInvalid as error:
        if error.errors:
            invalid(SpecErrors(error.errors))
        refuse(str(error), ExitCode.INVALID_JOB)
    except WaitTimeout as error:
        refuse(str(error), ExitCode.TIMEOUT)
    except (KubealignError, RunFailed) as error:
        refuse(str(error))
    except KeyboardInterrupt:
        raise typer.Exit(ExitCode.INTERRUPTED) from None


def invalid(errors: Exception) -> NoReturn:
    """End the command with the SpecErrors, one a line."""
    from kubealign.cli.report import show_errors

    show_errors(getattr(errors, "errors", []))
    raise typer.Exit(ExitCode.INVALID_JOB)
