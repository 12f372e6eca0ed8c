"""What the administrator of the platform sets for all jobs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Platform:
    """Settings of the chart that reach the pods of jobs."""

    #: The image of every pod of a job, the bus's included.
    image: str
    #: The platform's Redis, as pods resolve it.
    redis_host: str
    redis_port: int = 6379
    redis_tls: bool = False
    image_pull_policy: str = "IfNotPresent"
    #: The interpreter in the image.
    python: str = "python"
    #: A pod template, laid over every pod of every job before the templates of the job itself. It may set
    #: anything that a pod has.
    pod_template: Mapping[str, Any] = field(default_factory=dict)
    #: Role, such as trainer or nats -> `requests` and `limits` of its container. A role that is not named
    #: gets the built-in requests.
    default_resources: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    run_as_user: int = 65532
    fs_group: int = 65532
