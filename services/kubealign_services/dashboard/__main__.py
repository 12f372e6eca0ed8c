"""`python -m kubealign_services.dashboard`: the dashboard of a cluster, as the chart runs it."""

import asyncio
import logging
import os
import sys

from kubealign.client.errors import KubealignError
from kubealign_services.dashboard.cluster import logs, service
from kubealign_services.dashboard.cluster.settings import SettingsError, from_environment

log = logging.getLogger("kubealign_services.dashboard")

_USAGE = 2


def main() -> int:
    """0: told to stop. 1: a fault: start it again. 2: a setting that must be mended."""
    try:
        settings = from_environment(os.environ)
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        return _USAGE
    logs.set_up(settings.log_level)
    try:
        asyncio.run(service.run(settings))
    except (SettingsError, KubealignError) as error:
        log.error("%s", error)
        return _USAGE
    except Exception:
        log.exception("the dashboard ends")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
