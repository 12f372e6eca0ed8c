"""What `helm test` runs: the API server serves AlignmentJobs, and an operator is ready. Makes nothing."""

import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
API = "https://kubernetes.default.svc/apis/kubealign.dev/v1alpha1"
WANTED = {"alignmentjobs", "alignmentjobs/status", "alignmentjobs/scale"}
SECONDS = 60


def served() -> None:
    """Raises RuntimeError when the resource or one of its subresources is not served."""
    token = (ACCOUNT / "token").read_text()
    request = urllib.request.Request(API, headers={"Authorization": f"Bearer {token}"})
    trusted = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    with urllib.request.urlopen(request, timeout=5, context=trusted) as answer:
        missing = WANTED - {found["name"] for found in json.load(answer)["resources"]}
    if missing:
        raise RuntimeError(f"not served: {', '.join(sorted(missing))}")


def ready() -> None:
    """Raises OSError when no operator answers that it is ready."""
    with urllib.request.urlopen(os.environ["OPERATOR_READY"], timeout=5):
        pass


deadline = time.monotonic() + SECONDS
for what, check in (("AlignmentJobs are served", served), ("an operator is ready", ready)):
    while True:
        try:
            check()
            break
        except (OSError, RuntimeError) as error:
            if time.monotonic() > deadline:
                sys.exit(f"not so after {SECONDS} s: {what}: {error}")
            time.sleep(1)
    print(f"{what}", flush=True)  # noqa: T201
