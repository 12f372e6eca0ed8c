"""Command line: `python -m kubealign_operator --config FILE`."""

import argparse
import asyncio
import logging
import signal
import sys
from pathlib import Path

from kubealign import json_logs
from kubealign_operator.controller.config import ConfigError, OperatorConfig, load_config
from kubealign_operator.controller.http_endpoints import AddressError
from kubealign_operator.controller.operator import Operator

log = logging.getLogger("kubealign_operator")

_USAGE_ERROR = 2


async def _run_until_signal(config: OperatorConfig) -> None:
    """Run the operator until SIGTERM or SIGINT. Raises the error that ended the operator otherwise."""
    stop_requested = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, stop_requested.set)
    running = asyncio.create_task(Operator(config).run())
    waiting = asyncio.create_task(stop_requested.wait())
    await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if not running.done():
        log.info("stopping on a signal")
        running.cancel()
        await asyncio.wait([running])
    if not running.cancelled():
        running.result()


def main() -> int:
    """Run the operator.

    Returns:
        The exit code. 0: stopped by a signal. 1: lost the lease, or a fault: restart it. 2: invalid
        configuration.
    """
    parser = argparse.ArgumentParser(prog="kubealign_operator", description="The kubealign operator.")
    parser.add_argument(
        "--config", type=Path, required=True, help="YAML configuration file; see docs/operations.md"
    )
    arguments = parser.parse_args()
    try:
        config = load_config(arguments.config)
    except ConfigError as error:
        parser.exit(_USAGE_ERROR, f"{error}\n")
    json_logs.configure_logging(config.log_level)
    # The client logs several lines for each attempt to take the lease.
    lowest = max(logging.WARNING, logging.getLevelNamesMapping()[config.log_level])
    logging.getLogger("kubernetes").setLevel(lowest)
    try:
        asyncio.run(_run_until_signal(config))
    except (ConfigError, AddressError) as error:
        log.error("%s", error)
        return _USAGE_ERROR
    except BaseException:
        log.exception("the operator failed")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
