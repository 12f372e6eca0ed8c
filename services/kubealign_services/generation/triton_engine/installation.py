"""Where a Triton server lies on this machine, and how it is started."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kubealign.process import TlsFiles
from kubealign_services.process.failures import PermanentFailure

#: Names the folder of the server's own environment; it lies in ours otherwise.
ENVIRONMENT = "KUBEALIGN_TRITON"
_SECONDS = 60

_ASK = """
import json, sys, sysconfig
names = ("LIBDIR", "INSTSONAME", "MULTIARCH")
print(json.dumps({
    "version": "%d.%d" % sys.version_info[:2], "base": sys.base_prefix, "site": sysconfig.get_path("purelib"),
    **{name: sysconfig.get_config_var(name) or "" for name in names}}))
"""


@dataclass(frozen=True)
class Installation:
    """An environment with nvidia-pytriton, which carries the server. site: its packages. base: the prefix of
    the Python that it was made with. libraries: folders of shared libraries. version: 3.11."""

    site: Path
    base: Path
    libraries: tuple[Path, ...]
    version: str

    @classmethod
    def find(cls, environment: Mapping[str, str] = os.environ) -> "Installation":
        """Raises PermanentFailure, which says what is not there and how it comes there."""
        folder = Path(environment.get(ENVIRONMENT) or Path(sys.prefix) / "triton")
        python = folder / "bin" / "python"
        if not python.exists():
            raise PermanentFailure(
                f"rollout.engine.triton: there is no Triton server's environment at {folder}: make it as "
                f"docs/engines.md says, or name one in {ENVIRONMENT}"
            )
        asked = subprocess.run(
            [python, "-I", "-c", _ASK], capture_output=True, text=True, timeout=_SECONDS, check=False
        )
        if asked.returncode:
            raise PermanentFailure(f"rollout.engine.triton: {python} does not run: {asked.stderr.strip()}")
        said = json.loads(asked.stdout)
        site = Path(said["site"])
        lib = Path(said["LIBDIR"])
        libpython = next(
            (place for place in (lib, lib / said["MULTIARCH"]) if (place / said["INSTSONAME"]).is_file()),
            None,
        )
        if libpython is None or not said["INSTSONAME"].partition(".so")[1]:
            raise PermanentFailure(
                f"rollout.engine.triton: {python} has no shared libpython in {lib}, which Triton's Python "
                "backend needs: use a Python that was built with --enable-shared"
            )
        # Without its own libraries the server hangs, and ignores signals.
        found = cls(
            site, Path(said["base"]), (libpython, site / "nvidia_pytriton.libs"), str(said["version"])
        )
        missing = [str(path) for path in (found.binary, *found.backend_files) if not path.exists()]
        if missing:
            raise PermanentFailure(
                f"rollout.engine.triton: {folder} has no {', '.join(missing)}: it needs nvidia-pytriton, as "
                "requirements/triton.txt pins it"
            )
        return found

    @property
    def binary(self) -> Path:
        return self._server / "bin" / "tritonserver"

    @property
    def backend_files(self) -> list[Path]:
        """What one folder must hold together: the backend, its Python module and the interpreter's stub."""
        backend = self._server / "backends" / "python"
        stub = self._server / "python_backend_stubs" / self.version / "triton_python_backend_stub"
        return [backend / "libtriton_python.so", backend / "triton_python_backend_utils.py", stub]

    @property
    def _server(self) -> Path:
        return self.site / "pytriton" / "tritonserver"

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """The server's environment variables."""
        kept = {name: value for name, value in inherited.items() if not name.startswith("PYTHON")}
        libraries = [str(folder) for folder in self.libraries]
        if kept.get("LD_LIBRARY_PATH"):
            libraries.append(kept["LD_LIBRARY_PATH"])
        return kept | {"LD_LIBRARY_PATH": ":".join(libraries), "PYTHONHOME": str(self.base)}


def arguments(
    folder: Path, tls: TlsFiles, grpc: int, metrics: int, region: str, start_seconds: float
) -> list[str]:
    """The server's, over the folders of `write_repository`. Ports on loopback: gRPC with mutual TLS by the
    job's certificates, metrics, no HTTP. region: how the names of its shared memory begin."""
    options = {
        "model-repository": folder / "models",
        "backend-directory": folder / "backends",
        "allow-http": "false",
        "grpc-address": "127.0.0.1",
        "grpc-port": grpc,
        "grpc-use-ssl": "true",
        "grpc-use-ssl-mutual": "true",
        "grpc-server-cert": tls.certificate,
        "grpc-server-key": tls.key,
        "grpc-root-cert": tls.ca,
        "metrics-address": "127.0.0.1",
        "metrics-port": metrics,
        "log-info": "false",
        "exit-timeout-secs": 4,
    }
    backend = {"shm-region-prefix-name": region, "stub-timeout-seconds": max(1, round(start_seconds))}
    # Else the model's class would be loaded once more, only to be asked for its configuration.
    return (
        ["--disable-auto-complete-config"]
        + [f"--{name}={value}" for name, value in options.items()]
        + [f"--backend-config=python,{name}={value}" for name, value in backend.items()]
    )
