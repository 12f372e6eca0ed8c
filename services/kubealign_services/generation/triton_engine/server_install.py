"""Locates the Triton server installed on this machine and builds its command line."""

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kubealign.process_settings import TlsFiles
from kubealign_services.runtime.process.failures import PermanentFailure
from kubealign_services.runtime.python_environments import environment_folder, environment_variable

_ENVIRONMENT = "triton"
_PROBE_TIMEOUT_SECONDS = 60

_PROBE_SCRIPT = """
import json, sys, sysconfig
names = ("LIBDIR", "INSTSONAME", "MULTIARCH")
print(json.dumps({
    "version": "%d.%d" % sys.version_info[:2], "base": sys.base_prefix, "site": sysconfig.get_path("purelib"),
    **{name: sysconfig.get_config_var(name) or "" for name in names}}))
"""


@dataclass(frozen=True)
class TritonInstallation:
    """A Python environment with nvidia-pytriton, which contains the server.

    site: its site-packages. base: the prefix of the Python that it was created from. libraries: folders of
    shared libraries. version: for example 3.11.
    """

    site: Path
    base: Path
    libraries: tuple[Path, ...]
    version: str

    @classmethod
    def find(cls, environment: Mapping[str, str] = os.environ) -> "TritonInstallation":
        """Find the installation.

        Raises PermanentFailure, which names what is missing and how to install it.
        """
        folder = environment_folder(_ENVIRONMENT, environment)
        python = folder / "bin" / "python"
        if not python.exists():
            raise PermanentFailure(
                f"rollout.engine.triton: no Triton server environment at {folder}: create it as "
                f"docs/engines.md describes, or name one in {environment_variable(_ENVIRONMENT)}"
            )
        probe = subprocess.run(
            [python, "-I", "-c", _PROBE_SCRIPT],
            capture_output=True,
            text=True,
            timeout=_PROBE_TIMEOUT_SECONDS,
            check=False,
        )
        if probe.returncode:
            raise PermanentFailure(f"rollout.engine.triton: {python} does not run: {probe.stderr.strip()}")
        info = json.loads(probe.stdout)
        site = Path(info["site"])
        lib = Path(info["LIBDIR"])
        libpython = next(
            (path for path in (lib, lib / info["MULTIARCH"]) if (path / info["INSTSONAME"]).is_file()),
            None,
        )
        if libpython is None or not info["INSTSONAME"].partition(".so")[1]:
            raise PermanentFailure(
                f"rollout.engine.triton: {python} has no shared libpython in {lib}, which Triton's Python "
                "backend needs: use a Python that was built with --enable-shared"
            )
        # Without its own libraries the server hangs and ignores signals.
        installation = cls(
            site, Path(info["base"]), (libpython, site / "nvidia_pytriton.libs"), str(info["version"])
        )
        files = (installation.binary, *installation.backend_files)
        missing = [str(path) for path in files if not path.exists()]
        if missing:
            raise PermanentFailure(
                f"rollout.engine.triton: {folder} has no {', '.join(missing)}: it needs nvidia-pytriton, as "
                "requirements/triton.txt pins it"
            )
        return installation

    @property
    def binary(self) -> Path:
        return self._server_folder / "bin" / "tritonserver"

    @property
    def backend_files(self) -> list[Path]:
        """Files that one folder must contain: the backend, its Python module and the interpreter's stub."""
        backend = self._server_folder / "backends" / "python"
        stub = self._server_folder / "python_backend_stubs" / self.version / "triton_python_backend_stub"
        return [backend / "libtriton_python.so", backend / "triton_python_backend_utils.py", stub]

    @property
    def _server_folder(self) -> Path:
        return self.site / "pytriton" / "tritonserver"

    def server_environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """Build the server's environment variables."""
        variables = {name: value for name, value in inherited.items() if not name.startswith("PYTHON")}
        libraries = [str(folder) for folder in self.libraries]
        if variables.get("LD_LIBRARY_PATH"):
            libraries.append(variables["LD_LIBRARY_PATH"])
        return variables | {"LD_LIBRARY_PATH": ":".join(libraries), "PYTHONHOME": str(self.base)}


def server_arguments(
    folder: Path, tls: TlsFiles, grpc: int, metrics: int, region: str, start_seconds: float
) -> list[str]:
    """Build the server's arguments for the folders of `write_model_repository`.

    All ports are on loopback: gRPC with mutual TLS by the job's certificates, metrics, no HTTP.

    Args:
        region: Prefix of the names of the server's shared memory regions.
    """
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
    # Otherwise the model's class would be loaded once more, only to read its configuration.
    return (
        ["--disable-auto-complete-config"]
        + [f"--{name}={value}" for name, value in options.items()]
        + [f"--backend-config=python,{name}={value}" for name, value in backend.items()]
    )
