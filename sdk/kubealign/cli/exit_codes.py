"""Exit codes, and the conversion of exceptions to a message on stderr and an exit code."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import NoReturn

import typer


class CliExitCode(IntEnum):
    """Exit codes of the commands."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    INVALID_JOB = 3
    TIMEOUT = 124
    INTERRUPTED = 130


#: Meanings for docs/cli.md.
EXIT_CODE_MEANINGS = {
    CliExitCode.DONE: "done; for `run` and `wait`: the job succeeded",
    CliExitCode.FAILED: "failure: the job failed or does not exist, or a request was rejected or unanswered",
    CliExitCode.USAGE: "invalid usage: an unknown option, a missing argument",
    CliExitCode.INVALID_JOB: "a job, or a change to one, is invalid; each error names its field",
    CliExitCode.TIMEOUT: "`wait` timed out",
    CliExitCode.INTERRUPTED: "Ctrl-C",
}


def exit_with_error(message: str, code: CliExitCode = CliExitCode.FAILED) -> NoReturn:
    """Exit with a message on stderr; red on a terminal."""
    from kubealign.cli.terminal import console, escape_control

    console(stderr=True).print(
        escape_control(message), style="red", soft_wrap=True, markup=False, highlight=False
    )
    raise typer.Exit(code)


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Convert exceptions of a client or a runner to a message and an exit code."""
    # Imported here, so that commands without a backend do not load its dependencies.
    from kubealign.client.errors import JobInvalid, KubealignError, WaitTimeout
    from kubealign.local.errors import RunFailed
    from kubealign.spec.errors import SpecErrors

    try:
        yield
    except SpecErrors as errors:
        exit_invalid_job(errors)
    except JobInvalid as error:
        if error.errors:
            exit_invalid_job(SpecErrors(error.errors))
        exit_with_error(str(error), CliExitCode.INVALID_JOB)
    except WaitTimeout as error:
        exit_with_error(str(error), CliExitCode.TIMEOUT)
    except (KubealignError, RunFailed) as error:
        exit_with_error(str(error))
    except KeyboardInterrupt:
        raise typer.Exit(CliExitCode.INTERRUPTED) from None


def exit_invalid_job(errors: Exception) -> NoReturn:
    """Exit with the SpecErrors, one per line."""
    from kubealign.cli.views.spec_errors import print_errors

    print_errors(getattr(errors, "errors", []))
    raise typer.Exit(CliExitCode.INVALID_JOB)
