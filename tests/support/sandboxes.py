"""Programs in sandboxes, and what has become of their attacks."""

import os
from textwrap import dedent, indent

from kubealign_services.scoring.sandbox.bubblewrap import Bubblewrap
from kubealign_services.scoring.sandbox.limits import Limits
from kubealign_services.scoring.sandbox.runs import Check, TestVerdict, run_check, run_script

MIB = 2**20


class Sandbox:
    """Runs programs with small limits."""

    def __init__(self, bubblewrap: Bubblewrap) -> None:
        self._bubblewrap = bubblewrap

    def script(
        self,
        program: str,
        text: str = "",
        output: str = "",
        *,
        seconds: float = 20.0,
        memory_mib: int = 256,
        output_bytes: int = 4096,
        processes: int = 8,
    ) -> TestVerdict:
        """Return the verdict on the output of a program with the input `text`."""
        limits = Limits(seconds, memory_mib * MIB, output_bytes, processes)
        return run_script(self._bubblewrap, text, output, dedent(program), limits)

    def check(
        self,
        program: str,
        test: str,
        *,
        setup: str = "",
        prefix: str = "",
        entry_point: str | None = None,
        seconds: float = 20.0,
    ) -> TestVerdict:
        """Return the verdict of a test on a program."""
        check = Check(dedent(test), setup, prefix, entry_point)
        return run_check(
            self._bubblewrap,
            check,
            prefix + program if prefix else dedent(program),
            Limits(seconds, 256 * MIB, 4096, 8),
        )

    def error_of(self, attack: str, **limits: int) -> str:
        """Return the name of the OSError with which the attack ends; "none" where it succeeds."""
        program = (
            "import errno\ntry:\n"
            + indent(dedent(attack).strip(), "    ")
            + "\nexcept OSError as error:\n    print(errno.errorcode.get(error.errno, type(error).__name__))"
            + "\nelse:\n    print('none')\n"
        )
        verdict = self.script(program, output="?", **limits)
        prefix, suffix = "printed '", "'; expected '?'"
        assert verdict.reason.startswith(prefix) and verdict.reason.endswith(suffix), verdict
        return verdict.reason[len(prefix) : -len(suffix)]


def control_groups(pid: int) -> list[str]:
    """Return the control groups of the sandboxes of a process. Groups of others may vanish meanwhile."""
    prefix = f"kubealign-sandbox-{pid}-"
    return [name for _, names, _ in os.walk("/sys/fs/cgroup") for name in names if name.startswith(prefix)]
