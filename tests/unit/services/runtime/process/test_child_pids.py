"""Child processes of a process whose threads come and go."""

import os
import subprocess
import threading

from kubealign_services.runtime.process.child_pids import list_child_pids


def test_a_child_is_found_while_threads_end() -> None:
    child = subprocess.Popen(["sleep", "60"])
    stopped = threading.Event()

    def start_threads() -> None:
        while not stopped.is_set():
            thread = threading.Thread(target=lambda: None)
            thread.start()
            thread.join()

    starters = [threading.Thread(target=start_threads) for _ in range(3)]
    try:
        for starter in starters:
            starter.start()
        assert all(child.pid in list_child_pids(os.getpid()) for _ in range(500))
    finally:
        stopped.set()
        child.kill()
        child.wait()
        for starter in starters:
            starter.join()


def test_a_process_that_has_ended_has_no_children() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    assert list_child_pids(child.pid) == []
