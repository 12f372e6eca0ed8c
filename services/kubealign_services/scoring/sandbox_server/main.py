"""Sandbox service: `python -m kubealign_services.scoring.sandbox_server.main --help`."""

import argparse
import asyncio
import logging
import os
import signal
import ssl
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from kubealign import json_logs
from kubealign_services.scoring.sandbox.errors import SandboxUnavailable
from kubealign_services.scoring.sandbox.programs import ProgramRunner
from kubealign_services.scoring.sandbox_server.application import SandboxService, ServiceSettings
from kubealign_services.scoring.sandbox_server.documents import ProgramLimits

log = logging.getLogger(__name__)

_USAGE_ERROR = 2


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="sandbox_server",
        allow_abbrev=False,
        description="Runs programs in sandboxes for rewards with verifier.code.server.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=8080, help="port to listen on; 0: a free one")
    parser.add_argument(
        "--parallel-tests", type=_positive, default=os.cpu_count(), help="tests that run at once"
    )
    parser.add_argument(
        "--programs",
        type=_positive,
        default=64,
        help="programs that run or wait at once; further ones are answered with 429",
    )
    parser.add_argument(
        "--token-variable", metavar="NAME", help="environment variable with the token of requests"
    )
    parser.add_argument(
        "--tls-folder",
        type=Path,
        metavar="FOLDER",
        help="folder with tls.crt and tls.key, as in a Secret of the type kubernetes.io/tls",
    )
    parser.add_argument(
        "--verify-clients",
        action="store_true",
        help="require client certificates, signed by ca.crt of the TLS folder",
    )
    parser.add_argument(
        "--max-seconds-per-test", type=float, default=30.0, help="largest limits.secondsPerTest"
    )
    parser.add_argument(
        "--max-seconds-per-response", type=float, default=120.0, help="largest limits.secondsPerResponse"
    )
    parser.add_argument(
        "--max-memory-mib", type=int, default=1024, help="largest limits.memoryMib, at least 64"
    )
    parser.add_argument("--max-output-bytes", type=int, default=2**20, help="largest limits.outputBytes")
    parser.add_argument("--max-processes", type=int, default=64, help="largest limits.processes")
    return parser


def read_settings(arguments: argparse.Namespace, variables: Mapping[str, str]) -> ServiceSettings:
    """Return the settings of a command line. Raises ValueError."""
    maxima = {name: getattr(arguments, f"max_{name}") for name in ProgramLimits.model_fields}
    try:
        limits = ProgramLimits.model_validate(maxima)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        option = f"--max-{str(first['loc'][0]).replace('_', '-')}"
        raise ValueError(f"{option}: {first['input']}: {first['msg']}") from error
    token = None
    if arguments.token_variable is not None:
        token = variables.get(arguments.token_variable)
        if not token:
            raise ValueError(
                f"--token-variable: the environment variable {arguments.token_variable} is not set"
            )
    if arguments.verify_clients and arguments.tls_folder is None:
        raise ValueError("--verify-clients needs --tls-folder")
    tls = None if arguments.tls_folder is None else _tls(arguments.tls_folder, arguments.verify_clients)
    return ServiceSettings(arguments.host, arguments.port, arguments.programs, limits, token, tls)


def _tls(folder: Path, verifies_clients: bool) -> ssl.SSLContext:
    """Return the TLS context of a server. Raises ValueError."""
    try:
        authority = folder / "ca.crt" if verifies_clients else None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority)
        context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    except OSError as error:
        raise ValueError(f"--tls-folder: the certificates of {folder}: {error}") from error
    if verifies_clients:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} must be at least 1")
    return number


async def serve_until_signal(runner: ProgramRunner, settings: ServiceSettings) -> None:
    """Serve until SIGTERM or SIGINT. Raises OSError where the address cannot be used."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with SandboxService(runner, settings) as service:
        log.info("serves programs at %s", service.address)
        await stop.wait()
        log.info("stopping on a signal")


def main(argv: Sequence[str]) -> int:
    """Serve.

    Returns:
        The exit code. 0: stopped by a signal. 1: no sandbox can be made, or the address cannot be used.
        2: invalid arguments.
    """
    parser = make_parser()
    arguments = parser.parse_args(argv)
    json_logs.configure_logging("INFO")
    try:
        settings = read_settings(arguments, os.environ)
    except ValueError as error:
        parser.exit(_USAGE_ERROR, f"{error}\n")
    try:
        asyncio.run(serve_until_signal(ProgramRunner(arguments.parallel_tests), settings))
    except (SandboxUnavailable, OSError) as error:
        log.error("%s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
