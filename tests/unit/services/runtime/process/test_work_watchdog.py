"""Deadlines of computations."""

import subprocess
import sys
import textwrap
import threading

import pytest

from kubealign_services.runtime.process.work_watchdog import OVERDUE_EXIT_CODE, WorkWatchdog

pytestmark = pytest.mark.timeout(60)


def test_a_call_over_its_limit_is_reported() -> None:
    reports: list[str] = []
    reported = threading.Event()

    def report(text: str) -> None:
        reports.append(text)
        reported.set()

    watchdog = WorkWatchdog(tick_seconds=0.01, on_overdue=report)
    with watchdog.limit("Describe", 1000.0), watchdog.limit("TrainStep", 0.05):
        assert reported.wait(20)
    assert reports[0] == "TrainStep has run for more than its limit of 0.05 s"
    assert watchdog.overdue_call == ""


def test_time_in_which_the_process_was_stopped_does_not_count() -> None:
    watchdog = WorkWatchdog(tick_seconds=1000.0)
    with watchdog.limit("Save", 5000.0):
        watchdog.add_elapsed(86_400.0)
        watchdog.add_elapsed(1000.0)
        assert watchdog.overdue_call == ""
        watchdog.add_elapsed(2000.0)
        watchdog.add_elapsed(1.0)
        assert watchdog.overdue_call == "Save has run for more than its limit of 5000 s"
    assert watchdog.overdue_call == ""


def test_the_process_ends_with_the_stacks_of_its_threads() -> None:
    program = """
        import threading
        from kubealign_services.runtime.process.work_watchdog import WorkWatchdog

        def read_from_hung_file_system():
            with WorkWatchdog(tick_seconds=0.05).limit("Save", 0.1):
                threading.Event().wait()

        read_from_hung_file_system()
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=50
    )
    assert run.returncode == OVERDUE_EXIT_CODE
    assert "in read_from_hung_file_system" in run.stderr
