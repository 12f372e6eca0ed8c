"""References to container images."""

from enum import StrEnum
from typing import Annotated, TypeAlias

from pydantic import Field

#: An image with its registry, and a tag or digest.
ImageName: TypeAlias = Annotated[str, Field(min_length=1, max_length=1024)]


class PullPolicy(StrEnum):
    """When the kubelet pulls an image. IfNotPresent: when the node does not have it."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"
