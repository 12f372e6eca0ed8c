"""Starts the job's NATS server in a container, configured from the mounted files."""

import logging
import os
import socket
import sys
from typing import NoReturn

from kubealign.nats_config import NatsConfig, find_nats_server
from kubealign.pod_contract import NATS_MONITORING_PORT, NATS_PASSWORD_FILE, NATS_PORT
from kubealign.process_settings import ExitCode
from kubealign_services.runtime.process.failures import PermanentFailure
from kubealign_services.runtime.process.mounts import Mounts
from kubealign_services.runtime.process.termination_message import write_termination_message
from kubealign_services.telemetry.logs import set_up_logs

log = logging.getLogger(__name__)


def main(
    mounts: Mounts | None = None, port: int = NATS_PORT, monitoring_port: int = NATS_MONITORING_PORT
) -> NoReturn:
    """Replace this process by the server.

    On a failure exit with PERMANENT and write the cause to the termination message.
    """
    mounts = mounts or Mounts()
    try:
        command = _build_command(mounts, port, monitoring_port)
    except (PermanentFailure, OSError) as error:
        set_up_logs("", "nats", "nats", sys.stdout)
        log.error(str(error), extra={"permanent": True})
        write_termination_message(mounts.termination, str(error))
        sys.exit(ExitCode.PERMANENT)
    os.execv(command[0], command)


def _build_command(mounts: Mounts, port: int, monitoring_port: int) -> list[str]:
    config = NatsConfig(
        listen=f"0.0.0.0:{port}",
        name=socket.gethostname(),
        password=mounts.secret(NATS_PASSWORD_FILE),
        tls=mounts.tls,
        store=mounts.nats_data,
        monitoring_port=monitoring_port,
    )
    # Written to a memory volume, because the file holds the password.
    path = mounts.runtime / "nats.conf"
    config.write(path)
    return [str(find_nats_server()), "-c", str(path)]
