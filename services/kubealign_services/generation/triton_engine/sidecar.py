"""A Triton server with the torch engine's model, for a worker that is configured with its address.

The address is rollout.engine.triton.endpoint. Usage:

python -m kubealign_services.generation.triton_engine.sidecar --folder FOLDER --ca FILE --certificate FILE
--key FILE [--port 8001] [--metrics-port 8002]

Replaces itself with the server, on loopback. The server must see the worker's files and shared memory.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from kubealign.process_settings import ExitCode, TlsFiles
from kubealign_services.generation.triton_engine.model_repository import write_model_repository
from kubealign_services.generation.triton_engine.server_install import TritonInstallation, server_arguments
from kubealign_services.runtime.process.failures import PermanentFailure

_START_SECONDS = 600.0


def main(argv: Sequence[str]) -> NoReturn:
    """Parse the arguments and become the server. Raises SystemExit where the server cannot be started."""
    parser = argparse.ArgumentParser(prog="sidecar")
    for name in ("folder", "ca", "certificate", "key"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--port", type=int, default=8001)
    parser.add_argument("--metrics-port", type=int, default=8002)
    parsed = parser.parse_args(argv)
    try:
        installation = TritonInstallation.find()
    except PermanentFailure as failure:
        sys.stderr.write(f"{failure}\n")
        sys.exit(ExitCode.PERMANENT)
    write_model_repository(parsed.folder, installation)
    tls = TlsFiles(ca=parsed.ca, certificate=parsed.certificate, key=parsed.key)
    options = server_arguments(
        parsed.folder.absolute(), tls, parsed.port, parsed.metrics_port, "kubealign_sidecar_", _START_SECONDS
    )
    binary = str(installation.binary)
    os.execve(binary, [binary, *options], installation.server_environment(os.environ))


if __name__ == "__main__":
    main(sys.argv[1:])
