"""Sandboxes on machines that refuse what isolates, and for users other than root."""

import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyseccomp
import pytest

from kubealign import cgroups
from kubealign_services.scoring import shortened_text
from kubealign_services.scoring.sandbox import bubblewrap
from kubealign_services.scoring.sandbox.bubblewrap import Bubblewrap
from kubealign_services.scoring.sandbox.errors import SandboxUnavailable
from support.sandboxes import control_groups

pytestmark = pytest.mark.timeout(120)

#: The user of the pods of a job.
POD_USER = 65532

_CONFINED = """
import errno, sys
import pyseccomp
rules = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
for name in sys.argv[1].split(","):
    rules.add_rule(pyseccomp.ERRNO(errno.EPERM), name)
# CLONE_NEWUSER, as the runtime's profile in a pod has it.
flag = 0x10000000
rules.add_rule(pyseccomp.ERRNO(errno.EPERM), "clone", pyseccomp.Arg(0, pyseccomp.MASKED_EQ, flag, flag))
rules.load()
from kubealign_services.scoring.sandbox.bubblewrap import Bubblewrap
Bubblewrap()
"""

_OTHER_USER = """
import sys
from kubealign_services.scoring.sandbox.bubblewrap import Bubblewrap
from kubealign_services.scoring.sandbox.limits import Limits
from kubealign_services.scoring.sandbox.runs import Check, run_check, run_script
bubblewrap = Bubblewrap()
limits = Limits(20.0, 256 << 20, 4096, 8)
bomb = '''
import os, signal
count = 0
try:
    while True:
        if os.fork() == 0:
            signal.pause()
        count += 1
except BlockingIOError:
    print(count)
'''
print(bubblewrap.has_memory_groups)
print(run_script(bubblewrap, "", "7", bomb, limits).passed)
print(run_script(bubblewrap, "", "", "data = bytes(2**30)", limits).reason)
print(run_check(bubblewrap, Check("assert f() == 1"), "def f():\\n    return 1", limits).passed)
print(run_check(bubblewrap, Check("assert f() == 2"), "def f():\\n    return 1", limits).passed)
"""


@pytest.fixture
def readable_services() -> Iterator[Path]:
    """The package, the modules that it imports and pyseccomp in a folder that every user can read."""
    with tempfile.TemporaryDirectory(prefix="kubealign-") as folder:
        package = Path(folder, "kubealign_services", "scoring", "sandbox")
        shutil.copytree(
            Path(bubblewrap.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__")
        )
        for module in (pyseccomp, cgroups, shortened_text):
            target = Path(folder, *module.__name__.split(".")).with_suffix(".py")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(str(module.__file__), target)
        for path in (Path(folder), *Path(folder).rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        yield Path(folder)


def python_for_everyone() -> str:
    """Return an interpreter that another user can run: that of the tests may be in the home of root."""
    candidates = [os.path.realpath(sys.executable), "/usr/bin/python3"]
    for candidate in candidates:
        command = [candidate, "-I", "-S", "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
        try:
            if (
                subprocess.run(command, user=POD_USER, group=POD_USER, timeout=60, check=False).returncode
                == 0
            ):
                return candidate
        except PermissionError:
            continue
    pytest.skip(f"no other user can run any of {', '.join(candidates)}, or they are older than 3.11")


def test_without_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxUnavailable, match="bwrap is not installed: add the package bubblewrap"):
        Bubblewrap()


@pytest.mark.parametrize("refused", ["unshare", "unshare,mount", "unshare,pivot_root"])
def test_a_profile_that_refuses_namespaces(refused: str) -> None:
    """The profile of a pod by default: nothing runs, and the error names the remedy."""
    result = subprocess.run(
        [sys.executable, "-c", _CONFINED, refused],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 1
    last = result.stderr.strip().splitlines()[-1]
    assert "SandboxUnavailable: bwrap: " in last
    assert "the seccomp and AppArmor profiles must allow unshare, mount, umount2 and pivot_root" in last


def test_another_user_without_control_groups(readable_services: Path) -> None:
    """The user of a job's pods: no capabilities, no control group, the kernel's limits of each process."""
    if os.geteuid() != 0:
        pytest.skip("only root can run a process as another user")
    result = subprocess.run(
        [python_for_everyone(), "-c", _OTHER_USER],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(readable_services)},
        user=POD_USER,
        group=POD_USER,
        extra_groups=[],
        cwd="/",
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert result.stderr == ""
    assert result.stdout.split("\n")[:5] == ["False", "True", "used more than 256 MiB", "True", "False"]


def test_the_worker_dies() -> None:
    """A killed worker takes its sandboxes along: the fixture would see the program."""
    program = (
        "import os, sys\n"
        "from kubealign_services.scoring.sandbox.bubblewrap import Bubblewrap, memory_file\n"
        "from kubealign_services.scoring.sandbox.limits import Limits\n"
        "import json\n"
        "limits = Limits(600.0, 256 << 20, 4096, 8)\n"
        "document = {'limits': limits.for_process(), 'program': 'import signal\\nsignal.pause()'}\n"
        "ready, writer = os.pipe()\n"
        "descriptors = [memory_file(json.dumps(document).encode()), writer]\n"
        "process = Bubblewrap().start('script', descriptors, limits)\n"
        "assert os.read(ready, 1) == b'r'\n"
        "init = process._init\n"
        "lines = open(f'/proc/self/fdinfo/{init}').read().splitlines()\n"
        "print(next(line.split()[1] for line in lines if line.startswith('Pid:')), flush=True)\n"
        "sys.stdin.read()\n"
    )
    worker = subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert worker.stdout is not None
    sandbox = os.pidfd_open(int(worker.stdout.readline()))
    try:
        worker.kill()
        worker.communicate(timeout=60)
        # Readable when the init has ended, which is the end of every process in its namespace.
        poller = select.poll()
        poller.register(sandbox)
        assert poller.poll(60_000)
    finally:
        os.close(sandbox)
    assert control_groups(worker.pid)
    Bubblewrap()
    assert not control_groups(worker.pid)
