"""A container's main, with a folder in place of its root: `main([NAME, ROOT, ENVIRONMENT, MODULE])`, or for
the bus `main([NAME, ROOT, ENVIRONMENT, "nats", PORT])`. ENVIRONMENT: JSON."""

import json
import os
from pathlib import Path

from kubealign_services.bus import nats_start
from kubealign_services.process import pod
from kubealign_services.process.mounts import Mounts


def main(argv: list[str]) -> int:
    """Does not return for the bus."""
    _, root, environment, *rest = argv
    os.environ.update(json.loads(environment))
    mounts = Mounts(Path(root))
    if rest[0] == "nats":
        nats_start.main(mounts, int(rest[1]))
    return pod.main(["pod", *rest], mounts)
