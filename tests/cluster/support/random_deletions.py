"""Deletions of a job's pods, and of the operator's, at random times."""

import random
import time
from collections import Counter

from .helm import NAMESPACE
from .kubectl import KubectlFailed
from .tenant import Tenant

_MEAN_PAUSE_SECONDS = 12.0
#: Options of the deletion: the pod's own grace period, a second, none.
_GRACES = ((), (), ("--grace-period=1",), ("--grace-period=0", "--force"))
_OPERATOR = "operator"
_OPERATOR_PODS = ("get", "pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/component=operator", "-o", "name")


def delete_at_random(tenant: Tenant, job: str, seconds: float, generator: random.Random) -> Counter[str]:
    """Delete a random pod again and again for `seconds` seconds.

    Pauses are exponential. Each process is chosen as often as the others; a process without a pod at that
    time is left out.

    Returns:
        Process of the job, or `operator` -> number of deletions.
    """
    deletions: Counter[str] = Counter()
    end = time.monotonic() + seconds
    while (pause := generator.expovariate(1 / _MEAN_PAUSE_SECONDS)) < end - time.monotonic():
        time.sleep(pause)
        status = tenant.status(job)
        assert status.get("phase") != "Failed", f"{job} failed: {status.get('message')}; {deletions}"
        pods = {name.removeprefix(f"{job}-").rpartition("-")[0]: name for name in sorted(tenant.pods())}
        process = generator.choice([_OPERATOR, *sorted(pods)])
        namespace, pod = tenant.namespace, pods.get(process, "")
        if process == _OPERATOR:
            running = tenant.control_plane.kubectl(*_OPERATOR_PODS).split()
            namespace, pod = NAMESPACE, generator.choice(running).removeprefix("pod/")
        try:
            options = generator.choice(_GRACES)
            tenant.control_plane.kubectl("delete", "pod", pod, "-n", namespace, "--wait=false", *options)
        except KubectlFailed as error:
            # The pod ended by itself after the list of pods.
            if "NotFound" not in str(error):
                raise
        else:
            deletions[process] += 1
    return deletions
