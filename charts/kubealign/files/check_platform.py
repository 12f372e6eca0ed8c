"""The check of `helm test`: AlignmentJobs are served, and the operator and the dashboard (if installed) are
ready.

It creates nothing.
"""

import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
API = "https://kubernetes.default.svc/apis/kubealign.dev/v1alpha1"
WANTED = {"alignmentjobs", "alignmentjobs/status", "alignmentjobs/scale"}
SECONDS = 60


def served() -> None:
    """Verify that the resource and its subresources are served.

    Raises:
        RuntimeError: One of them is not served.
    """
    token = (ACCOUNT / "token").read_text()
    request = urllib.request.Request(API, headers={"Authorization": f"Bearer {token}"})
    trusted = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    with urllib.request.urlopen(request, timeout=5, context=trusted) as answer:
        missing = WANTED - {found["name"] for found in json.load(answer)["resources"]}
    if missing:
        raise RuntimeError(f"not served: {', '.join(sorted(missing))}")


def ready(url: str) -> None:
    """Verify that the endpoint reports readiness.

    The certificate is not verified: no secret is sent.

    Raises:
        OSError: The endpoint is not ready.
    """
    anybody = ssl.create_default_context()
    anybody.check_hostname = False
    anybody.verify_mode = ssl.CERT_NONE
    with urllib.request.urlopen(url, timeout=5, context=anybody):
        pass


deadline = time.monotonic() + SECONDS
checks: list[tuple[str, Callable[[], None]]] = [("AlignmentJobs are served", served)]
for component in ("operator", "dashboard"):
    if address := os.environ.get(f"{component.upper()}_READY"):
        checks.append((f"the {component} is ready", partial(ready, address)))
for what, check in checks:
    while True:
        try:
            check()
            break
        except (OSError, RuntimeError) as error:
            if time.monotonic() > deadline:
                sys.exit(f"failed after {SECONDS} s: {what}: {error}")
            time.sleep(1)
    print(f"{what}", flush=True)  # noqa: T201
