"""Path and query parameters of the routes."""

from typing import Annotated, TypeAlias

from fastapi import Path, Query

from kubealign.spec.base import DNS_LABEL_PATTERN, JOB_NAME_PATTERN

API_PREFIX = "/api/v1"
ENTRY_PATTERN = r"^\d{1,19}-\d{1,19}$"

Namespace: TypeAlias = Annotated[
    str,
    Path(pattern=DNS_LABEL_PATTERN, max_length=63, description="The job's namespace.", examples=["default"]),
]
JobName: TypeAlias = Annotated[
    str,
    Path(pattern=JOB_NAME_PATTERN, max_length=52, description="metadata.name of the job.", examples=["sums"]),
]
After: TypeAlias = Annotated[
    str,
    Query(
        pattern=ENTRY_PATTERN,
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
