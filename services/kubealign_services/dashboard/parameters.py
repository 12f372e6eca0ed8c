"""Path and query parameters of the routes."""

from typing import Annotated, TypeAlias

from fastapi import Path, Query

from kubealign.spec.base import DNS_LABEL, JOB_NAME

API = "/api/v1"
ENTRY = r"^\d{1,19}-\d{1,19}$"

Namespace: TypeAlias = Annotated[
    str, Path(pattern=DNS_LABEL, max_length=63, description="The job's namespace.", examples=["default"])
]
JobName: TypeAlias = Annotated[
    str, Path(pattern=JOB_NAME, max_length=52, description="metadata.name of the job.", examples=["sums"])
]
After: TypeAlias = Annotated[
    str,
    Query(
        pattern=ENTRY,
        description="Return entries after this one: `next` of the previous response. 0-0: from the first.",
        examples=["0-0"],
    ),
]
Seconds: TypeAlias = Annotated[
    int | None,
    Query(
        alias="timeoutSeconds",
        ge=1,
        le=86_400,
        description="End the stream after this many seconds; default: no limit.",
        examples=[3600],
    ),
]
