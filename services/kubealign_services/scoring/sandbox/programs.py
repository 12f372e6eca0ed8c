"""Programs with the tests that they have to pass, and the runs of these tests in sandboxes."""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

from kubealign_services.scoring.sandbox.bubblewrap import Bubblewrap
from kubealign_services.scoring.sandbox.errors import SandboxFailed
from kubealign_services.scoring.sandbox.limits import Limits
from kubealign_services.scoring.sandbox.runs import Check, TestVerdict, run_check, run_script


@dataclass(frozen=True)
class InputOutputCase:
    """Standard input of a program, and the standard output of a right one."""

    input: str
    output: str


@dataclass(frozen=True)
class TestedProgram:
    """A program with the tests that it has to pass.

    Args:
        text: The program without its prefix.
        tests: Statements that raise an exception where the program is wrong, or cases.
        prefix: Beginning of the program that the row gives; tests by statements have its imports.
        setup: Statements that run before the program. Only with tests by statements.
        entry_point: Name of the function that `check` of each test takes; None: the tests call the program
            themselves. Only with tests by statements.
    """

    # The name looks like a class of tests to pytest.
    __test__ = False

    text: str
    tests: Sequence[str] | Sequence[InputOutputCase]
    prefix: str = ""
    setup: str = ""
    entry_point: str | None = None

    @property
    def is_empty(self) -> bool:
        """True where there is no program to run."""
        return not self.text.strip()


class ProgramRun:
    """Tests of one program, whose time begins with the first of them.

    Args:
        limits: Limits of each test.
        seconds: Longest time of all tests together.
    """

    def __init__(
        self, bubblewrap: Bubblewrap, program: TestedProgram, limits: Limits, seconds: float
    ) -> None:
        self._bubblewrap = bubblewrap
        self._program = program
        self._limits = limits
        self._longest = seconds
        self._lock = threading.Lock()
        self._start: float | None = None
        self._end = 0.0
        self.verdicts: list[Future[TestVerdict]] = []

    @property
    def seconds(self) -> float:
        """Time from the start of the first test to the end of the last one; 0 before."""
        return 0.0 if self._start is None else max(0.0, self._end - self._start)

    def start(self, threads: ThreadPoolExecutor) -> None:
        """Run the tests in some threads, several at once."""
        self.verdicts = [threads.submit(self._verdict, test) for test in self._program.tests]

    def cancel(self) -> None:
        """Run none of the tests that have not started."""
        for verdict in self.verdicts:
            verdict.cancel()

    def _verdict(self, test: str | InputOutputCase) -> TestVerdict:
        """Run a test. Raises SandboxFailed."""
        with self._lock:
            if self._start is None:
                self._start = time.monotonic()
            remaining = self._start + self._longest - time.monotonic()
        if remaining <= 0:
            return TestVerdict(False, f"not run: the tests took longer than {self._longest:g} s")
        limits = replace(self._limits, seconds=min(self._limits.seconds, remaining))
        program = self._program
        text = program.prefix + program.text
        if isinstance(test, InputOutputCase):
            verdict = run_script(self._bubblewrap, test.input, test.output, text, limits)
        else:
            check = Check(test, program.setup, program.prefix, program.entry_point)
            verdict = run_check(self._bubblewrap, check, text, limits)
        self._end = time.monotonic()
        if self._bubblewrap.is_closed:
            raise SandboxFailed("a sandbox was ended before its test")
        return verdict


class ProgramRunner:
    """Runs programs in sandboxes of this machine.

    Args:
        parallel_tests: Most tests that run at once.
    """

    def __init__(self, parallel_tests: int) -> None:
        """Raises SandboxUnavailable where this machine cannot isolate programs."""
        self._bubblewrap = Bubblewrap()
        # A sandbox dies with the thread that has started it, so the threads stay.
        self._threads = ThreadPoolExecutor(parallel_tests, "sandbox")

    def start(self, program: TestedProgram, limits: Limits, seconds: float) -> ProgramRun:
        """Start the tests of a program.

        Args:
            limits: Limits of each test.
            seconds: Longest time of all tests together.
        """
        run = ProgramRun(self._bubblewrap, program, limits, seconds)
        run.start(self._threads)
        return run

    def close(self) -> None:
        """End all sandboxes, and wait until they have ended; their tests raise SandboxFailed."""
        self._bubblewrap.close()
        # Tests that wait fail at once, which tells whoever waits for them; those cancelled would cancel it.
        self._threads.shutdown(wait=True)
