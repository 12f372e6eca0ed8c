"""Python interpreter of this process, without the packages of its environment, for the use in a sandbox."""

import functools
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

from kubealign_services.scoring.sandbox.errors import SandboxUnavailable

#: Folders of packages within the standard library's folder.
_PACKAGE_FOLDERS = ("site-packages", "dist-packages")
_LIBRARY = re.compile(r"(?:=>)?\s*(/\S+) \(0x[0-9a-f]+\)")
_UNWINDER = "libgcc_s.so.1"
_LDD_SECONDS = 30.0


class Interpreter:
    """Files that the interpreter reads, and nothing else of the machine."""

    def __init__(self) -> None:
        """Raises SandboxUnavailable where the interpreter's libraries cannot be listed."""
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        executable = Path(sys.base_exec_prefix, "bin", version)
        if not executable.is_file():
            raise SandboxUnavailable(
                f"verifier code needs the interpreter {executable}, which does not exist"
            )
        self.executable = executable.resolve()
        self.library = Path(sysconfig.get_path("stdlib")).resolve()

    @functools.cached_property
    def mounts(self) -> list[str]:
        """Arguments for bwrap that show the interpreter, its standard library and the C libraries."""
        arguments = []
        for path in (self.executable, self.library, *self._shared_libraries):
            arguments += ["--ro-bind", str(path), str(path)]
        for name in _PACKAGE_FOLDERS:
            if (self.library / name).is_dir():
                packages = str(self.library / name)
                arguments += ["--size", "4096", "--tmpfs", packages, "--remount-ro", packages]
        # The cache of the dynamic loader, which knows folders such as /usr/local/lib, is not visible.
        folders = dict.fromkeys(str(path.parent) for path in self._shared_libraries)
        return [*arguments, "--setenv", "LD_LIBRARY_PATH", ":".join(folders)]

    @functools.cached_property
    def _shared_libraries(self) -> list[Path]:
        """Dynamic loader, and the libraries that interpreter and modules load."""
        # Tk's libraries are half of all, and a program has no display.
        modules = [
            path
            for path in (self.library / "lib-dynload").glob("*.so")
            if not path.name.startswith("_tkinter")
        ]
        try:
            # Its status is 1 where one of the files needs no library.
            listing = subprocess.run(
                ["ldd", self.executable, *modules],
                capture_output=True,
                text=True,
                timeout=_LDD_SECONDS,
                check=False,
            ).stdout
        except (OSError, subprocess.SubprocessError) as error:
            raise SandboxUnavailable(
                f"verifier code cannot list the libraries of {self.executable}: {error}"
            ) from error
        libraries = {Path(match) for match in _LIBRARY.findall(listing)}
        # The C library loads it when a thread ends.
        unwinders = {path.parent / _UNWINDER for path in libraries if path.name.startswith("libc.so")}
        return sorted(libraries | {path for path in unwinders if path.is_file()})
