"""Processes in sandboxes of bubblewrap: namespaces of their own, a file system of the interpreter alone.

https://github.com/containers/bubblewrap
"""

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path

from kubealign_services.scoring.sandbox.control_groups import ControlGroup, ControlGroups
from kubealign_services.scoring.sandbox.errors import SandboxFailed, SandboxUnavailable
from kubealign_services.scoring.sandbox.interpreter import Interpreter
from kubealign_services.scoring.sandbox.limits import SCRATCH_BYTES, Limits
from kubealign_services.scoring.sandbox.system_calls import seccomp_program

#: The only package of the worker in a sandbox, by its full name, and the folder on the interpreter's path.
_PACKAGE = f"{__package__}.inside"
_PATH = "/kubealign"
_WORK_FOLDER = "/tmp"
#: An isolated interpreter has not the folder of its script on the path.
_START = f"import sys; sys.path.insert(0, {_PATH!r}); from {_PACKAGE} import {{script}}; {{script}}.main()"
#: User and group in the sandbox: nobody.
_USER = "65534"
#: The init of a sandbox is a process too.
_OWN_PROCESSES = 1
_START_SECONDS = 30.0
_END_SECONDS = 10.0
_PROBE_LIMITS = Limits(seconds=10, memory_bytes=512 * 2**20, output_bytes=4096, processes=4)

_REMEDY = (
    "verifier code runs programs only in a sandbox of bubblewrap, which needs user namespaces. In a pod the "
    "seccomp and AppArmor profiles must allow unshare, mount, umount2 and pivot_root "
    "(docs/rewards.md); on a machine, sysctl user.max_user_namespaces must be above 0"
)

_ENVIRONMENT = {
    "HOME": _WORK_FOLDER,
    "TMPDIR": _WORK_FOLDER,
    "LANG": "C.UTF-8",
    # Each thread's arena would take 64 MiB of the address space.
    "MALLOC_ARENA_MAX": "1",
}


class SandboxProcess:
    """A process in a sandbox of its own, with all its descendants.

    Args:
        monitor: The process of bwrap outside.
        init: Process descriptor of the first process inside: its end is the end of all.
        group: Control group of the processes inside.
    """

    def __init__(self, monitor: subprocess.Popen[bytes], init: int, group: ControlGroup) -> None:
        self._monitor = monitor
        self._init = init
        self._group = group
        self._lock = threading.Lock()
        self._has_ended = False
        self.exceeded_memory = False

    def kill(self) -> None:
        """Kill every process of the sandbox. `end` still has to be called. Any thread may call it."""
        with self._lock, contextlib.suppress(ProcessLookupError):
            if not self._has_ended:
                signal.pidfd_send_signal(self._init, signal.SIGKILL)

    def end(self, has_ended: bool = False) -> int:
        """Kill every process of the sandbox, and return the exit status of the script, negative for a signal.

        Raises SandboxFailed where a process cannot be killed.

        Args:
            has_ended: Every process has closed the output, so the status of the script arrives by itself.
        """
        if has_ended:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._monitor.wait(_END_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._init, signal.SIGKILL)
        poller = select.poll()
        poller.register(self._init, select.POLLIN)
        is_empty = bool(poller.poll(_END_SECONDS * 1000))
        with self._lock:
            self._has_ended = True
            os.close(self._init)
        try:
            code = self._monitor.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._monitor.kill()
            is_empty = False
        self.exceeded_memory = self._group.has_exceeded_memory()
        self._group.remove()
        if not is_empty:
            raise SandboxFailed(f"the processes of a sandbox did not end within {_END_SECONDS:g} s")
        # bwrap returns 128 + the number of the signal that has ended the process.
        return code if code <= 128 else 128 - code


class Bubblewrap:
    """Starts processes in sandboxes.

    Raises SandboxUnavailable where this machine cannot isolate: nothing runs without a sandbox.
    """

    def __init__(self) -> None:
        program = shutil.which("bwrap")
        if program is None:
            raise SandboxUnavailable(
                "the program bwrap is not installed: add the package bubblewrap to the image or the machine"
            )
        self._program = program
        self._groups = ControlGroups()
        if os.geteuid() == 0 and not self._groups.limits_processes:
            raise SandboxUnavailable(
                "the kernel limits the number of processes of root by control groups only, and this process "
                "cannot make one: run the worker as another user, as the pods of a job do, or give it a "
                "writable pids controller"
            )
        self._interpreter = Interpreter()
        self._filter = seccomp_program()
        self._lock = threading.Lock()
        self._processes: weakref.WeakSet[SandboxProcess] = weakref.WeakSet()
        self.is_closed = False
        self._probe()

    @property
    def has_memory_groups(self) -> bool:
        """True where the memory limit counts all processes of a sandbox together."""
        return self._groups.limits_memory

    def close(self) -> None:
        """Kill the processes of all sandboxes, and start none any more. Any thread may call it."""
        with self._lock:
            self.is_closed = True
            processes = list(self._processes)
        for process in processes:
            process.kill()

    def start(
        self,
        script: str,
        descriptors: Sequence[int],
        limits: Limits,
        stdin: int = subprocess.DEVNULL,
        output: int = subprocess.DEVNULL,
        error: int = subprocess.DEVNULL,
    ) -> SandboxProcess:
        """Start a script of inside/.

        Raises SandboxFailed, also after `close`.

        Args:
            script: Name of its module.
            descriptors: Files that the script gets as numbers on its command line, at the same numbers.
            stdin: Standard input; output: standard output; error: standard error. Files, or of subprocess.
        """
        if self.is_closed:
            raise SandboxFailed("no sandbox starts any more")
        info_read, info_write = os.pipe()
        block_read, block_write = os.pipe()
        rules = os.memfd_create("seccomp")
        init, group = -1, None
        try:
            os.write(rules, self._filter)
            os.lseek(rules, 0, os.SEEK_SET)
            options = {"--info-fd": info_write, "--block-fd": block_read, "--seccomp": rules}
            monitor = subprocess.Popen(
                [*self._command(options), "-c", _START.format(script=script), *map(str, descriptors)],
                stdin=stdin,
                stdout=output,
                stderr=error,
                pass_fds=(*options.values(), *descriptors),
            )
            os.close(info_write)
            info_write = -1
            try:
                pid, init = _first_process(info_read, monitor)
                group = self._groups.make(limits.memory_bytes, limits.processes + _OWN_PROCESSES)
                group.add(pid)
            except BaseException:
                monitor.kill()
                monitor.wait()
                if init >= 0:
                    os.close(init)
                if group is not None:
                    group.remove()
                raise
            os.write(block_write, b"1")
            process = SandboxProcess(monitor, init, group)
            with self._lock:
                self._processes.add(process)
                is_closed = self.is_closed
            if is_closed:
                process.kill()
            return process
        except OSError as error_:
            raise SandboxFailed(f"a sandbox did not start: {error_}") from error_
        finally:
            for descriptor in (info_read, info_write, block_read, block_write, rules):
                if descriptor >= 0:
                    os.close(descriptor)

    def _command(self, options: Mapping[str, int]) -> list[str]:
        package = Path(__file__).parent / "inside"
        arguments = [
            self._program,
            *("--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"),
            "--unshare-cgroup-try",
            *("--uid", _USER, "--gid", _USER, "--hostname", "sandbox", "--cap-drop", "ALL"),
            *("--die-with-parent", "--new-session", "--clearenv"),
            *self._interpreter.mounts,
            *("--ro-bind", str(package), f"{_PATH}/{_PACKAGE.replace('.', '/')}"),
            *("--dev-bind", "/dev/null", "/dev/null"),
            *("--size", str(SCRATCH_BYTES), "--perms", "0700", "--tmpfs", _WORK_FOLDER),
            *("--chdir", _WORK_FOLDER),
            # No /proc: the runtime of a container masks parts of it, and then the kernel allows no new one.
            *("--remount-ro", "/"),
        ]
        for name, value in _ENVIRONMENT.items():
            arguments += ["--setenv", name, value]
        for option, descriptor in options.items():
            arguments += [option, str(descriptor)]
        return [*arguments, "--", str(self._interpreter.executable), "-I", "-S", "-B", "-X", "utf8"]

    def _probe(self) -> None:
        """Run a trivial script. Raises SandboxUnavailable with what bwrap says."""
        ready_read, ready_write = os.pipe()
        error_read, error_write = os.pipe()
        document = memory_file(json.dumps({"limits": _PROBE_LIMITS.for_process(), "program": ""}).encode())
        has_started, fault = False, "a sandbox did not start"
        try:
            process = self.start("script", [document, ready_write], _PROBE_LIMITS, error=error_write)
            os.close(ready_write)
            ready_write = -1
            events, _, _ = select.select([ready_read], [], [], _START_SECONDS)
            has_started = bool(events and os.read(ready_read, 1))
            process.end()
        except SandboxFailed as error:
            has_started, fault = False, str(error)
        finally:
            # The end of what bwrap says is read once no process can write to it.
            os.close(error_write)
            text = os.read(error_read, 4096).decode(errors="replace").strip()
            for descriptor in (ready_read, ready_write, error_read, document):
                if descriptor >= 0:
                    os.close(descriptor)
        if not has_started:
            raise SandboxUnavailable(f"{text or fault}. {_REMEDY}")


def memory_file(content: bytes) -> int:
    """Return a new file in memory, opened at its beginning."""
    descriptor = os.memfd_create("document")
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _first_process(info: int, monitor: subprocess.Popen[bytes]) -> tuple[int, int]:
    """Return id and descriptor of the sandbox's first process, which waits. Raises SandboxFailed."""
    text = b""
    while not text.rstrip().endswith(b"}"):
        if not select.select([info], [], [], _START_SECONDS)[0]:
            raise SandboxFailed(f"bwrap did not start a process within {_START_SECONDS:g} s")
        chunk = os.read(info, 4096)
        if not chunk:
            raise SandboxFailed(f"bwrap ended with status {monitor.wait(_END_SECONDS)}")
        text += chunk
    pid: int = json.loads(text)["child-pid"]
    return pid, os.pidfd_open(pid)
