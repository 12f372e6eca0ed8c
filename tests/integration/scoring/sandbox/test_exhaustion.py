"""Programs that try to use more than their limits, or to outlive them."""

import pytest

from support.sandboxes import Sandbox

pytestmark = pytest.mark.timeout(120)


def test_a_fork_bomb_is_refused(sandbox: Sandbox) -> None:
    program = """
        import os, signal
        children = []
        try:
            while True:
                pid = os.fork()
                if pid == 0:
                    signal.pause()
                children.append(pid)
        except BlockingIOError:
            print(len(children))
    """
    verdict = sandbox.script(program, "", "7", processes=8)
    assert verdict.passed, verdict


def test_a_fork_bomb_that_goes_on(sandbox: Sandbox) -> None:
    program = """
        import os
        while True:
            try:
                os.fork()
            except OSError:
                pass
    """
    assert sandbox.script(program, seconds=1).reason == "took longer than 1 s"


def test_a_thread_bomb(sandbox: Sandbox) -> None:
    program = """
        import threading
        stop, count = threading.Event(), 0
        try:
            while True:
                threading.Thread(target=stop.wait, daemon=True).start()
                count += 1
        except RuntimeError:
            print(count)
    """
    verdict = sandbox.script(program, "", "7", processes=8)
    assert verdict.passed, verdict


@pytest.mark.parametrize(
    "allocation",
    [
        "b'x' * 2**30",
        "[bytes(2**20) for _ in range(1000)]",
        "'a' * 10**10",
        "1 << 2**34",
        "list(range(10**9))",
    ],
)
def test_a_memory_bomb(sandbox: Sandbox, allocation: str) -> None:
    assert sandbox.script(f"data = {allocation}").reason == "used more than 256 MiB"
    assert sandbox.check(f"data = {allocation}", "assert True").reason == "used more than 256 MiB"


def test_memory_of_several_processes(sandbox: Sandbox) -> None:
    program = """
        import os, signal
        for _ in range(6):
            if os.fork() == 0:
                data = b"x" * (100 << 20)
                signal.pause()
        signal.pause()
    """
    verdict = sandbox.script(program, seconds=4)
    assert not verdict.passed
    assert verdict.reason == "used more than 256 MiB"


def test_a_full_disk(sandbox: Sandbox) -> None:
    attack = """
        for number in range(100):
            with open(f"file{number}", "wb") as file:
                for _ in range(32):
                    file.write(bytes(2**20))
    """
    assert sandbox.error_of(attack, memory_mib=512) in ("ENOSPC", "EFBIG")


def test_a_file_without_end(sandbox: Sandbox) -> None:
    program = """
        import os, signal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        descriptor = os.open("sparse", os.O_CREAT | os.O_RDWR)
        try:
            os.ftruncate(descriptor, 2**40)
        except OSError as error:
            print(error.strerror)
    """
    assert sandbox.script(program, "", "File too large").passed


@pytest.mark.parametrize(("stream", "limit"), [("stdout", 4096), ("stderr", 65536)])
def test_a_flood_of_output(sandbox: Sandbox, stream: str, limit: int) -> None:
    program = f"import sys\nwhile True:\n    sys.{stream}.write('x' * 4096)"
    assert sandbox.script(program).reason == f"printed more than {limit} bytes"
    assert sandbox.check(program, "assert True").reason == "printed more than 4096 bytes"


def test_an_output_of_just_the_limit(sandbox: Sandbox) -> None:
    program = "import sys\nsys.stdout.write('x' * 4096)"
    assert sandbox.script(program, "", "x" * 4096).passed
    assert not sandbox.script(program.replace("4096", "4097"), "", "x" * 4097).passed


@pytest.mark.parametrize(
    "program",
    [
        "while True: pass",
        "import time\ntime.sleep(10**6)",
        "import re\nre.match('(a+)+b', 'a' * 100)",
        "import threading\nthreading.Event().wait()",
        "import signal\nfor n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\nwhile True: pass",
        "import os\nos.close(1)\nos.close(2)\nwhile True: pass",
    ],
    ids=["loop", "sleep", "regex", "lock", "ignores-signals", "closes-output"],
)
def test_a_program_without_end(sandbox: Sandbox, program: str) -> None:
    assert sandbox.script(program, seconds=1).reason == "took longer than 1 s"
    assert sandbox.check(program, "assert True", seconds=1).reason == "took longer than 1 s"


def test_a_function_without_end(sandbox: Sandbox) -> None:
    verdict = sandbox.check("def f():\n    while True: pass", "assert f() == 1", seconds=1)
    assert verdict.reason == "took longer than 1 s"


def test_a_daemon_ends_with_its_program(sandbox: Sandbox) -> None:
    """It has its own session, no open output and ignores signals; the fixture sees whether it stays."""
    program = """
        import os, signal
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                for number in (1, 2, 3, 15):
                    signal.signal(number, signal.SIG_IGN)
                for descriptor in range(64):
                    try:
                        os.close(descriptor)
                    except OSError:
                        pass
                while True:
                    signal.pause()
            os._exit(0)
        os.wait()
        print("done")
    """
    assert sandbox.script(program, "", "done").passed
    # The test's own time, which ends first.
    assert sandbox.check(program, "assert True").passed


def test_deep_recursion(sandbox: Sandbox) -> None:
    assert sandbox.script("def f(n):\n    return f(n + 1)\nf(0)").reason.startswith("RecursionError")
    program = "import sys\nsys.setrecursionlimit(2**30)\ndef f(n):\n    return [f(n + 1)]\nsorted([1], key=f)"
    verdict = sandbox.script(program, seconds=4)
    assert not verdict.passed
    nested = "def f():\n    value = []\n    for _ in range(10**5):\n        value = [value]\n    return value"
    assert not sandbox.check(nested, "assert f() == 1").passed


def test_huge_values(sandbox: Sandbox) -> None:
    assert sandbox.check("def f():\n    return 'x' * 2**25", "assert f()").reason.startswith(
        "ValueError: a value has more than 16 MiB"
    )
    assert not sandbox.check("def f():\n    return 7 ** 10**8", "assert f() == 1", seconds=1).passed
    assert not sandbox.check("def f():\n    return iter(int, 1)", "assert list(f()) == 1", seconds=1).passed


def test_many_open_files(sandbox: Sandbox) -> None:
    assert sandbox.error_of("files = [open('/dev/null') for _ in range(1000)]") == "EMFILE"
