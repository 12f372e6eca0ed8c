"""Programs that try to reach what is outside of their sandbox."""

import os
import secrets
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.sandboxes import Sandbox

pytestmark = pytest.mark.timeout(120)


@contextmanager
def listening(family: int, address: object, kind: int = socket.SOCK_STREAM) -> Iterator[socket.socket]:
    """A server socket outside; accepting does not wait."""
    with socket.socket(family, kind) as server:
        server.bind(address)  # type: ignore[arg-type]
        if kind == socket.SOCK_STREAM:
            server.listen()
        server.setblocking(False)
        yield server


def test_a_secret_file_of_the_job(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    assert sandbox.error_of(f"print(open({str(tmp_path / 'token')!r}).read())") == "ENOENT"


@pytest.mark.parametrize(
    "path",
    [
        "/etc/shadow",
        "/etc/passwd",
        "/proc/1/environ",
        "/proc/self/environ",
        "/proc/self/mem",
        "/proc/self/fd/0",
        "/root/.bashrc",
        "/sys/kernel/mm",
        "/run",
        "/var/run/secrets/kubernetes.io/serviceaccount/token",
        "/dev/mem",
        "/dev/vda",
        "/dev/tty",
    ],
)
def test_files_of_the_machine(sandbox: Sandbox, path: str) -> None:
    assert sandbox.error_of(f"import os; os.open({path!r}, os.O_RDONLY)") == "ENOENT"


def test_only_the_interpreter_is_visible(sandbox: Sandbox) -> None:
    """The packages of the environment, and with them the code of the worker, are not."""
    program = """
        import os, sys
        folders = {path.split("/")[1] for path in sys.path} | {sys.executable.split("/")[1]}
        extra = set(os.listdir("/")) - folders - {"dev", "kubealign", "lib", "lib64", "tmp", "usr"}
        packages = [path for path in sys.path if path.endswith("-packages") or "venv" in path]
        print(sorted(extra), packages, os.listdir("/dev"), os.listdir("/tmp"))
    """
    verdict = sandbox.script(program, "", "[] [] ['null'] []")
    assert verdict.passed, verdict
    assert sandbox.script("import kubealign").reason == "ModuleNotFoundError: No module named 'kubealign'"
    folder = Path(os.__file__).parent / "site-packages"
    assert sandbox.script(f"import os; print(os.listdir({str(folder)!r}))", "", "[]").passed


@pytest.mark.parametrize(
    "path",
    ["/new", "/dev/new", "/dev/shm/new", "/usr/new", "/etc/cron.d/new", "/kubealign/new"],
)
def test_writing_outside_of_the_work_folder(sandbox: Sandbox, path: str) -> None:
    assert sandbox.error_of(f"open({path!r}, 'w')") in ("EROFS", "ENOENT", "EACCES")
    assert not Path(path).exists()


def test_writing_into_the_standard_library(sandbox: Sandbox) -> None:
    for path in (os.__file__, sys.executable):
        real = str(Path(path).resolve())
        before = Path(real).stat()
        assert sandbox.error_of(f"open({real!r}, 'r+b').write(b'x')") in ("EROFS", "ETXTBSY")
        assert Path(real).stat().st_mtime_ns == before.st_mtime_ns


def test_the_work_folder_is_private(sandbox: Sandbox) -> None:
    program = "import os\nopen('note', 'w').write('x')\nprint(os.getcwd(), os.listdir())"
    for _ in range(2):
        assert sandbox.script(program, "", "/tmp ['note']").passed
    assert not Path("/tmp/note").exists()


def test_a_tcp_port_of_the_machine(sandbox: Sandbox) -> None:
    with listening(socket.AF_INET, ("127.0.0.1", 0)) as server:
        attack = f"import socket; socket.create_connection({server.getsockname()!r}, 5)"
        assert sandbox.error_of(attack) == "EAFNOSUPPORT"
        with pytest.raises(BlockingIOError):
            server.accept()


@pytest.mark.parametrize("family", ["AF_INET", "AF_INET6", "AF_NETLINK", "AF_PACKET", "AF_VSOCK", "AF_ALG"])
def test_sockets_of_other_families(sandbox: Sandbox, family: str) -> None:
    assert (
        sandbox.error_of(f"import socket; socket.socket(socket.{family}, socket.SOCK_RAW)") == "EAFNOSUPPORT"
    )


def test_names_and_datagrams(sandbox: Sandbox) -> None:
    with listening(socket.AF_INET, ("127.0.0.1", 0), socket.SOCK_DGRAM) as server:
        attack = (
            "import socket; "
            f"socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', {server.getsockname()!r})"
        )
        assert sandbox.error_of(attack) == "EAFNOSUPPORT"
        with pytest.raises(BlockingIOError):
            server.recv(1)
    assert sandbox.error_of("import socket; socket.getaddrinfo('example.com', 80)") != "none"


def test_unix_sockets_of_the_machine(sandbox: Sandbox, tmp_path: Path) -> None:
    path, name = str(tmp_path / "socket"), f"\0kubealign-{secrets.token_hex(8)}"
    for address, error in ((path, "ENOENT"), (name, "ECONNREFUSED")):
        with listening(socket.AF_UNIX, address) as server:
            attack = f"import socket; socket.socket(socket.AF_UNIX).connect({address!r})"
            assert sandbox.error_of(attack) == error
            with pytest.raises(BlockingIOError):
                server.accept()


def test_the_environment_of_the_worker(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    program = "import os\nprint(sorted(os.environ))"
    assert sandbox.script(
        program, "", "['HOME', 'LANG', 'LD_LIBRARY_PATH', 'MALLOC_ARENA_MAX', 'PWD', 'TMPDIR']"
    ).passed


def test_descriptors_of_the_worker(sandbox: Sandbox, tmp_path: Path) -> None:
    """A file that the worker has opened, even one that children inherit, is closed in the sandbox."""
    (tmp_path / "token").write_text("secret")
    with (tmp_path / "token").open() as file:
        os.set_inheritable(file.fileno(), True)
        program = """
            import os
            for descriptor in range(64):
                try:
                    text = os.pread(descriptor, 100, 0)
                except OSError:
                    continue
                if b"secret" == text:
                    print("read", descriptor)
        """
        assert sandbox.script(program, "", "").passed


def test_signals_to_the_worker(sandbox: Sandbox) -> None:
    assert sandbox.error_of(f"import os; os.kill({os.getpid()}, 9)") == "ESRCH"
    assert sandbox.error_of(f"import os; os.kill({os.getppid()}, 15)") == "ESRCH"


def test_killing_the_parent_and_every_process(sandbox: Sandbox) -> None:
    """The init of a sandbox is immune, and the namespace has no process of the machine."""
    program = """
        import os, signal
        os.kill(os.getppid(), signal.SIGKILL)
        os.kill(1, signal.SIGTERM)
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            pass
        print("alive")
    """
    assert sandbox.script(program, "", "alive").passed


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        # PTRACE_ATTACH to the init, PTRACE_TRACEME.
        ("ptrace", "16, 1, 0, 0"),
        ("ptrace", "0, 0, 0, 0"),
        ("process_vm_readv", "1, None, 0, None, 0, 0"),
        ("mount", "b'none', b'/tmp', b'tmpfs', 0, None"),
        ("umount2", "b'/tmp', 2"),
        ("umount2", "b'/kubealign', 2"),
        ("chroot", "b'/tmp'"),
        # New namespaces of users and mounts.
        ("unshare", "0x10000000"),
        ("unshare", "0x00020000"),
        ("setns", "0, 0"),
        ("syscall", "56, 0x10000011, 0, 0, 0, 0"),
        ("syscall", "155, b'/tmp', b'/tmp'"),
        ("syscall", "250, 0, 0, 0, 0"),
        ("syscall", "321, 0, 0, 0"),
        ("syscall", "298, 0, 0, 0, 0"),
        ("syscall", "246, 0, 0, 0, 0"),
        ("syscall", "425, 1, 0"),
        ("memfd_create", "b'x', 0"),
        ("shmget", "0, 4096, 0o1600"),
        ("reboot", "0"),
        ("sethostname", "b'x', 1"),
        ("setuid", "0"),
        ("setgid", "0"),
        ("setresuid", "0, 0, 0"),
        ("setpriority", "0, 0, -5"),
    ],
)
def test_refused_system_calls(sandbox: Sandbox, call: str, arguments: str) -> None:
    """The numbers are those of x86-64: clone, pivot_root, keyctl, bpf, perf_event_open, kexec, io_uring."""
    if call == "syscall" and os.uname().machine != "x86_64":
        return
    attack = f"""
        import ctypes, os
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.{call}({arguments}) == -1:
            raise OSError(ctypes.get_errno(), "refused")
    """
    assert sandbox.error_of(attack) in ("EPERM", "EINVAL" if call.startswith("set") else "EPERM")


def test_userfaultfd_clone3_and_newer_calls(sandbox: Sandbox) -> None:
    for number, error in ((323, "EPERM"), (435, "ENOSYS"), (449, "ENOSYS"), (599, "ENOSYS")):
        attack = f"""
            import ctypes
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.syscall({number}, 0, 0) == -1:
                raise OSError(ctypes.get_errno(), "refused")
        """
        assert sandbox.error_of(attack) == error


def test_the_x32_calls_end_the_process(sandbox: Sandbox) -> None:
    """The filter knows the numbers of one architecture: any other one is no way around."""
    program = "import ctypes\nctypes.CDLL(None).syscall(0x40000000 | 39)\nprint('alive')"
    assert sandbox.script(program, "", "alive").reason == "ended by signal SIGSYS"


def test_programs_with_more_rights(sandbox: Sandbox) -> None:
    """No program with a setuid bit is visible, and none would get other rights."""
    program = """
        import ctypes, os, stat
        privileged = []
        for folder, _, names in os.walk("/"):
            for name in names:
                try:
                    mode = os.lstat(os.path.join(folder, name)).st_mode
                except OSError:
                    continue
                if stat.S_ISREG(mode) and mode & (stat.S_ISUID | stat.S_ISGID):
                    privileged.append(name)
        print(privileged, ctypes.CDLL(None).prctl(39, 0, 0, 0, 0))
    """
    verdict = sandbox.script(program, "", "[] 1")
    assert verdict.passed, verdict
    assert sandbox.error_of("import os; os.execv('/bin/su', ['su'])") == "ENOENT"
    assert sandbox.error_of("import subprocess; subprocess.run('id', shell=True)") == "ENOENT"


def test_a_file_with_a_setuid_bit_of_its_own(sandbox: Sandbox) -> None:
    program = """
        import os, shutil, subprocess, sys
        shutil.copy(sys.executable, "python")
        os.chmod("python", 0o6755)
        try:
            command = ["./python", "-c", "import os; print(os.getuid())"]
            print(subprocess.run(command, capture_output=True).stdout)
        except OSError as error:
            print(error.errno)
    """
    verdict = sandbox.script(program, "", r"b'65534\n'")
    assert verdict.passed or verdict.reason.startswith("printed"), verdict
    assert "b'0" not in verdict.reason


def test_a_chroot_that_is_left_again(sandbox: Sandbox) -> None:
    attack = "import os; os.mkdir('jail'); os.chroot('jail'); os.chdir('../../../..')"
    assert sandbox.error_of(attack) == "EPERM"
    program = "import os\nos.chdir('../../../../../..')\nprint(os.getcwd(), os.path.exists('etc/passwd'))"
    assert sandbox.script(program, "", "/ False").passed


def test_limits_cannot_be_raised(sandbox: Sandbox) -> None:
    program = """
        import resource
        for kind in (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE):
            soft, hard = resource.getrlimit(kind)
            try:
                resource.setrlimit(kind, (hard + 1, hard + 1))
            except ValueError:
                continue
            print("raised", kind)
        import os
        try:
            os.nice(-5)
        except PermissionError:
            print("polite")
    """
    assert sandbox.script(program, "", "polite").passed


def test_no_core_dump(sandbox: Sandbox) -> None:
    verdict = sandbox.script("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", "", "")
    assert verdict.reason in ("ended by signal SIGSEGV", "ended with exit status 139")
