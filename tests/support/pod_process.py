"""Main function of a container whose root is a folder: `main([NAME, ROOT, ENVIRONMENT, MODULE])`, or for the
bus `main([NAME, ROOT, ENVIRONMENT, "nats", PORT, MONITORING_PORT])`. ENVIRONMENT: JSON."""

import json
import os
from pathlib import Path

from kubealign_services.messaging.jetstream import nats_server
from kubealign_services.runtime.process import pod_entrypoint
from kubealign_services.runtime.process.mounts import Mounts


def main(argv: list[str]) -> int:
    """Run the process. Does not return for the bus."""
    _, root, environment, *rest = argv
    os.environ.update(json.loads(environment))
    mounts = Mounts(Path(root))
    if rest[0] == "nats":
        nats_server.main(mounts, int(rest[1]), int(rest[2]))
    return pod_entrypoint.main(["pod", *rest], mounts)
