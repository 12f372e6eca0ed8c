"""Runs of one test in sandboxes, and their verdicts, which are decided outside of the program's sandbox."""

import json
import os
import signal
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from kubealign_services.scoring.sandbox.bubblewrap import Bubblewrap, SandboxProcess, memory_file
from kubealign_services.scoring.sandbox.limits import Limits
from kubealign_services.scoring.sandbox.outputs import Output, read_until, wait_until_ready
from kubealign_services.scoring.shortened_text import shorten

#: Bytes of a verdict, and of the prints of a checker, of which none is read.
_VERDICT_BYTES = 2**16
#: Least limit of standard error, which tells why a script has failed.
_TRACEBACK_BYTES = 2**16
_SHOWN_CHARACTERS = 300
_MEMORY_ERROR = "MemoryError"


@dataclass(frozen=True)
class TestVerdict:
    """Result of one test, with the reason where it has failed."""

    # The name looks like a class of tests to pytest.
    __test__ = False

    passed: bool
    reason: str = ""


@dataclass(frozen=True)
class Check:
    """Test of a program by statements.

    Args:
        test: Statements that raise an exception where the program is wrong.
        setup: Statements that run before the program, in its process.
        prefix: Beginning of the program that the row gives; the test has its imports.
        entry_point: Name of the program's function that `check` of the test takes; None: the test does all.
    """

    test: str
    setup: str = ""
    prefix: str = ""
    entry_point: str | None = None


def run_check(bubblewrap: Bubblewrap, check: Check, program: str, limits: Limits) -> TestVerdict:
    """Run the program in one sandbox, and in another one the test, which sends it calls.

    Raises SandboxFailed.
    """
    shared = {"limits": limits.for_process()}
    documents = [
        memory_file(json.dumps({**shared, "setup": check.setup, "program": program}).encode()),
        memory_file(
            json.dumps(
                {
                    **shared,
                    "context": [check.setup, check.prefix],
                    "test": check.test,
                    "entryPoint": check.entry_point,
                }
            ).encode()
        ),
    ]
    ends = socket.socketpair()
    processes: list[SandboxProcess] = []
    with (
        Output(1) as program_ready,
        Output(1) as checker_ready,
        Output(limits.output_bytes) as prints,
        Output(_VERDICT_BYTES) as verdict,
    ):
        try:
            processes.append(
                bubblewrap.start(
                    "program",
                    [documents[0], program_ready.writer, ends[0].fileno()],
                    limits,
                    output=prints.writer,
                    error=prints.writer,
                )
            )
            processes.append(
                bubblewrap.start(
                    "checker",
                    [documents[1], checker_ready.writer, ends[1].fileno(), verdict.writer],
                    limits,
                )
            )
        finally:
            for descriptor in documents:
                os.close(descriptor)
            for end in ends:
                end.close()
            for output in (program_ready, checker_ready, prints, verdict):
                output.close_writer()
            if len(processes) < 2:
                _end_all(processes)
        try:
            wait_until_ready([program_ready, checker_ready])
            in_time = read_until(verdict, [prints], limits.seconds)
        finally:
            _end_all(processes)
    fault = _limit_fault(in_time, [prints], processes, limits)
    if not verdict.content:
        return TestVerdict(False, fault or "the test has ended without a verdict")
    document = json.loads(verdict.content)
    if document["passed"] is True and not fault:
        return TestVerdict(True)
    return TestVerdict(False, fault or _reason(document["name"], document["text"], limits))


def run_script(bubblewrap: Bubblewrap, text: str, expected: str, program: str, limits: Limits) -> TestVerdict:
    """Run the program with an input, and compare its output. Raises SandboxFailed.

    White space at the end of lines and of the whole does not count.

    Args:
        text: Standard input.
        expected: Standard output of a right program.
    """
    documents = [
        memory_file(json.dumps({"limits": limits.for_process(), "program": program}).encode()),
        memory_file(text.encode()),
    ]
    with (
        Output(1) as ready,
        Output(limits.output_bytes) as output,
        Output(max(limits.output_bytes, _TRACEBACK_BYTES)) as errors,
    ):
        try:
            process = bubblewrap.start(
                "script",
                [documents[0], ready.writer],
                limits,
                stdin=documents[1],
                output=output.writer,
                error=errors.writer,
            )
        finally:
            for descriptor in documents:
                os.close(descriptor)
            for pipe in (ready, output, errors):
                pipe.close_writer()
        in_time = False
        try:
            wait_until_ready([ready])
            in_time = read_until(output, [errors], limits.seconds)
        finally:
            status = process.end(has_ended=in_time and not output.has_exceeded and not errors.has_exceeded)
        while not errors.has_exceeded and errors.read():
            pass
    fault = _limit_fault(in_time, [output, errors], [process], limits)
    if fault:
        return TestVerdict(False, fault)
    if status != 0:
        last = errors.content.decode(errors="replace").strip().splitlines()[-1:]
        name, _, message = (last or [""])[0].partition(": ")
        return TestVerdict(False, _reason(name, message, limits) if last else _status_text(status))
    printed = output.content.decode(errors="replace")
    if _significant(printed) == _significant(expected):
        return TestVerdict(True)
    return TestVerdict(False, f"printed {_shown(printed)}; expected {_shown(expected)}")


def _end_all(processes: Sequence[SandboxProcess]) -> None:
    for process in processes:
        process.end()


def _limit_fault(
    in_time: bool, outputs: Sequence[Output], processes: Sequence[SandboxProcess], limits: Limits
) -> str:
    """Return the limit that the program has exceeded; empty: none."""
    if any(process.exceeded_memory for process in processes):
        return _memory_text(limits)
    for output in outputs:
        if output.has_exceeded:
            return f"printed more than {output.limit} bytes"
    return "" if in_time else f"took longer than {limits.seconds:.3g} s"


def _reason(name: str, text: str, limits: Limits) -> str:
    if name == _MEMORY_ERROR:
        return _memory_text(limits)
    return ": ".join(part for part in (name, shorten(" ".join(text.split()), _SHOWN_CHARACTERS)) if part)


def _memory_text(limits: Limits) -> str:
    return f"used more than {limits.memory_bytes >> 20} MiB"


def _status_text(status: int) -> str:
    if status < 0 and -status in signal.valid_signals():
        return f"ended by signal {signal.Signals(-status).name}"
    return f"ended with exit status {status}"


def _significant(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _shown(text: str) -> str:
    return repr(shorten(text.rstrip(), _SHOWN_CHARACTERS))
