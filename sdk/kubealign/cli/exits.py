"""Exit codes, and the conversion of exceptions to a message on stderr and an exit code."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import NoReturn

import typer


class ExitCode(IntEnum):
    """Exit codes of the commands."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    INVALID_JOB = 3
    TIMEOUT = 124
    INTERRUPTED = 130


#: Meanings for docs/cli.md.
MEANINGS = {
    ExitCode.DONE: "done; for `run` and `wait`: the job succeeded",
    ExitCode.FAILED: "failure: the job failed or does not exist, or the request was rejected or not answered",
    ExitCode.USAGE: "invalid usage: an unknown option, a missing argument",
    ExitCode.INVALID_JOB: "a job, or a change to one, is invalid; each error names its field",
    ExitCode.TIMEOUT: "`wait` timed out",
    ExitCode.INTERRUPTED: "Ctrl-C",
}


def refuse(message: str, code: ExitCode = ExitCode.FAILED) -> NoReturn:
    """Exit with a message on stderr; red on a terminal."""
    from kubealign.cli.terminal import console, safe

    console(stderr=True).print(safe(message), style="red", soft_wrap=True, markup=False, highlight=False)
    raise typer.Exit(code)


@contextmanager
def told() -> Iterator[None]:
    """Convert exceptions of a client or a runner to a message and an exit code."""
    # Imported here, so that commands without a backend do not load its dependencies.
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
    """Exit with the SpecErrors, one per line."""
    from kubealign.cli.report import show_errors

    show_errors(getattr(errors, "errors", []))
    raise typer.Exit(ExitCode.INVALID_JOB)
