"""Command line of the cluster's dashboard, as the Helm chart starts it: `python -m kubealign_dashboard`."""

import asyncio
import logging
import os
import sys

from kubealign import json_logs
from kubealign.client.errors import KubealignError
from kubealign_dashboard.cluster import service
from kubealign_dashboard.cluster.settings import SettingsError, from_environment

log = logging.getLogger("kubealign_dashboard")

_USAGE = 2


def main() -> int:
    """Run the dashboard.

    Returns:
        The exit code. 0: stopped by a signal. 1: a fault: restart it. 2: an invalid setting.
    """
    try:
        settings = from_environment(os.environ)
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        return _USAGE
    json_logs.configure_logging(settings.log_level)
    try:
        asyncio.run(service.run(settings))
    except (SettingsError, KubealignError) as error:
        log.error("%s", error)
        return _USAGE
    except Exception:
        log.exception("the dashboard failed")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
