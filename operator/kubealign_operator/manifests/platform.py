"""Settings of the platform's administrator for all jobs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Platform:
    """Settings of the Helm chart that affect the pods of jobs."""

    #: Image of every pod of a job, including the bus.
    image: str
    #: Host of the platform's Redis, as pods resolve it.
    redis_host: str
    redis_port: int = 6379
    redis_tls: bool = False
    image_pull_policy: str = "IfNotPresent"
    #: Python interpreter in the image.
    python: str = "python"
    #: A pod template that is merged into every pod of every job, before the templates of the job itself.
    #: Every field of a pod may be set.
    pod_template: Mapping[str, Any] = field(default_factory=dict)
    #: Role, such as trainer or nats -> `requests` and `limits` of its container. An absent role gets the
    #: built-in requests.
    default_resources: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    run_as_user: int = 65532
    fs_group: int = 65532
