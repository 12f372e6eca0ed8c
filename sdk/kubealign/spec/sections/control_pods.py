"""Pods of the processes that have no model: preparation, driver and message bus."""

from typing import Annotated, Literal

from pydantic import Field

from kubealign.spec.base import SpecModel, list_map_schema, unique_by
from kubealign.spec.pods.template import PodMetadata, PodSpecPatch, PodTemplate, ResourceRequirements


class BusContainer(SpecModel):
    """The container of the message bus, which runs a program of its own."""

    name: Literal["main"] = Field(description="Name of the single container.")
    resources: ResourceRequirements | None = Field(
        None, description="CPU and memory; null: the platform's defaults."
    )


class BusPodSpec(PodSpecPatch):
    """Fields of the bus's pod that a job may set."""

    containers: Annotated[list[BusContainer] | None, unique_by("name")] = Field(  # type: ignore[assignment]
        None, max_length=1, json_schema_extra=list_map_schema("name"), description="The container `main`."
    )


class BusPodTemplate(SpecModel):
    """A patch of the bus's pod, like podTemplate; of the container only the resources may be set."""

    metadata: PodMetadata | None = Field(None, description="Labels and annotations.")
    spec: BusPodSpec | None = Field(None, description="Scheduling and resources of the pod.")


class ControlPods(SpecModel):
    """Patches of the pods that have no model, on top of the job's own podTemplate. Ignored on one machine.

    Devices in the job's podTemplate, such as nvidia.com/gpu, do not apply to these pods.
    """

    prepare: PodTemplate | None = Field(
        None, description="Patch of the pod that downloads models and prepares the data."
    )
    driver: PodTemplate | None = Field(None, description="Patch of the driver's pod.")
    bus: BusPodTemplate | None = Field(None, description="Patch of the pod of the message bus.")
