"""Seccomp filter of a sandbox: system calls that no program of a test needs and that attacks use."""

import errno
import functools
import os
import socket

from kubealign_services.scoring.sandbox.errors import SandboxUnavailable

#: Refused with EPERM.
REFUSED = (
    # Other processes.
    *("ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "kcmp", "pidfd_getfd"),
    # Namespaces, mounts and roots.
    *(
        "mount",
        "umount2",
        "pivot_root",
        "chroot",
        "unshare",
        "setns",
        "fsopen",
        "fsconfig",
        "fsmount",
        "fspick",
        "move_mount",
        "open_tree",
    ),
    *("mount_setattr",),
    # Keys of the user, which no namespace separates.
    *("add_key", "request_key", "keyctl"),
    # Parts of the kernel with a history of vulnerabilities.
    *(
        "bpf",
        "perf_event_open",
        "userfaultfd",
        "io_uring_setup",
        "io_uring_enter",
        "io_uring_register",
        "name_to_handle_at",
    ),
    *("open_by_handle_at", "fanotify_init", "quotactl", "vmsplice"),
    # The machine.
    *(
        "kexec_load",
        "kexec_file_load",
        "reboot",
        "swapon",
        "swapoff",
        "init_module",
        "finit_module",
        "delete_module",
        "acct",
        "syslog",
    ),
    *(
        "settimeofday",
        "clock_settime",
        "clock_adjtime",
        "adjtimex",
        "sethostname",
        "setdomainname",
        "ioperm",
        "iopl",
    ),
    # Memory and queues that the limit of the address space does not count.
    *("memfd_create", "memfd_secret", "shmget", "shmat", "shmctl", "msgget", "semget", "mq_open"),
    # Priority and processors.
    *("setpriority", "sched_setscheduler", "sched_setparam", "sched_setattr", "ioprio_set"),
)

_NEW_NAMESPACES = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
#: Numbers of the calls since Linux 5.16, the same on all architectures: a program sees an older kernel.
_NEW_CALLS = (449, 600)
#: Terminal requests that write into the terminal's input.
_TERMINAL_INPUT = (0x5412, 0x541C)


@functools.cache
def seccomp_program() -> bytes:
    """Return the filter as bwrap's --seccomp takes it. Raises SandboxUnavailable without libseccomp.

    Calls of another architecture (32 bit, x32) end the process.
    """
    try:
        import pyseccomp
    except (ImportError, RuntimeError, OSError) as error:
        raise SandboxUnavailable(
            f"verifier code needs the library libseccomp (Debian: libseccomp2) and pyseccomp: {error}"
        ) from error

    rules = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    refuse = pyseccomp.ERRNO(errno.EPERM)
    for name in REFUSED:
        # One that the architecture does not have, or that is newer than the library, and refused below.
        if pyseccomp.resolve_syscall(pyseccomp.system_arch(), name) != -1:
            rules.add_rule(refuse, name)
    for number in range(*_NEW_CALLS):
        rules.add_rule(pyseccomp.ERRNO(errno.ENOSYS), number)
    # The flags of clone3 are in memory, where a filter cannot read them: the C library falls back to clone.
    rules.add_rule(pyseccomp.ERRNO(errno.ENOSYS), "clone3")
    for bit in range(32):
        if _NEW_NAMESPACES >> bit & 1:
            flag = 1 << bit
            rules.add_rule(refuse, "clone", pyseccomp.Arg(0, pyseccomp.MASKED_EQ, flag, flag))
    for name in ("socket", "socketpair"):
        family = pyseccomp.Arg(0, pyseccomp.NE, int(socket.AF_UNIX))
        rules.add_rule(pyseccomp.ERRNO(errno.EAFNOSUPPORT), name, family)
    for request in _TERMINAL_INPUT:
        rules.add_rule(refuse, "ioctl", pyseccomp.Arg(1, pyseccomp.MASKED_EQ, 0xFFFFFFFF, request))
    return _exported(rules)


def _exported(rules: object) -> bytes:
    with os.fdopen(os.memfd_create("seccomp"), "w+b") as file:
        rules.export_bpf(file)  # type: ignore[attr-defined]
        file.seek(0)
        return file.read()
