"""Volumes that a job's pods are given beside those that kubealign itself mounts."""

from enum import StrEnum
from typing import Annotated, TypeAlias

from pydantic import Field, model_validator

from kubealign.spec.base import (
    ABSOLUTE_PATH,
    DNS_LABEL,
    FILE_KEY,
    VOLUME_PATH,
    ObjectName,
    Spec,
    exactly_one,
    incoherent,
    merged_by,
    unique,
)
from kubealign.spec.quantities import Quantity

#: Names of volumes that begin so, and folders, are the operator's own.
RESERVED_VOLUMES = "kubealign-"
RESERVED_FOLDERS = ("/etc/kubealign", "/run/kubealign", "/volumes", "/dev", "/proc", "/sys")

VolumeName: TypeAlias = Annotated[str, Field(pattern=DNS_LABEL, max_length=63)]
FileKey: TypeAlias = Annotated[str, Field(pattern=FILE_KEY, max_length=253)]
RelativePath: TypeAlias = Annotated[str, Field(pattern=VOLUME_PATH, min_length=1, max_length=1024)]


class ObjectKey(Spec):
    """One key of a ConfigMap or Secret of the job's namespace."""

    name: ObjectName = Field(description="The object's name.")
    key: FileKey = Field(description="The key in it.")
    optional: bool | None = Field(None, description="Whether it may be missing; null: it may not.")


class KeyPath(Spec):
    """A key and the file that it becomes."""

    key: FileKey = Field(description="The key.")
    path: RelativePath = Field(description="The file, below where the volume is mounted.")


class ConfigMapVolume(Spec):
    """A ConfigMap's keys as files."""

    name: ObjectName = Field(description="The ConfigMap.")
    items: Annotated[list[KeyPath] | None, unique("key")] = Field(
        None, max_length=64, json_schema_extra=merged_by("key"), description="Which keys; null: all."
    )
    optional: bool | None = Field(None, description="Whether it may be missing; null: it may not.")


class SecretVolume(Spec):
    """A Secret's keys as files."""

    secret_name: ObjectName = Field(description="The Secret.")
    items: Annotated[list[KeyPath] | None, unique("key")] = Field(
        None, max_length=64, json_schema_extra=merged_by("key"), description="Which keys; null: all."
    )
    optional: bool | None = Field(None, description="Whether it may be missing; null: it may not.")


class ClaimVolume(Spec):
    """A PersistentVolumeClaim."""

    claim_name: ObjectName = Field(description="The claim.")
    read_only: bool | None = Field(None, description="Whether nothing is written to it.")


class Medium(StrEnum):
    """Memory: it counts against the pod's memory."""

    MEMORY = "Memory"


class EmptyVolume(Spec):
    """A folder that lasts as long as the pod."""

    medium: Medium | None = Field(None, description="null: the node's disk.")
    size_limit: Quantity | None = Field(None, description="Most that it holds; null: what there is.")


class Volume(Spec):
    """A volume, of exactly one kind."""

    name: VolumeName = Field(description="Names that begin with kubealign- are kubealign's own.")
    config_map: ConfigMapVolume | None = Field(None, description="A ConfigMap.")
    secret: SecretVolume | None = Field(None, description="A Secret.")
    persistent_volume_claim: ClaimVolume | None = Field(None, description="A claim.")
    empty_dir: EmptyVolume | None = Field(None, description="An empty folder.")

    @model_validator(mode="after")
    def _sound(self) -> "Volume":
        exactly_one(self, ["config_map", "secret", "persistent_volume_claim", "empty_dir"])
        if self.name.startswith(RESERVED_VOLUMES):
            remedy = "names that begin with kubealign- are taken: choose another"
            raise incoherent("Volume", (("name",), self.name, remedy))
        return self


class VolumeMount(Spec):
    """Where a volume is seen."""

    name: VolumeName = Field(description="The volume.")
    mount_path: Annotated[str, Field(pattern=ABSOLUTE_PATH, max_length=1024)] = Field(
        description="Folder, absolute; not below one that kubealign mounts itself."
    )
    sub_path: RelativePath | None = Field(None, description="Only this folder or file of the volume.")
    read_only: bool | None = Field(None, description="Whether nothing is written to it.")

    @model_validator(mode="after")
    def _own(self) -> "VolumeMount":
        if any(
            self.mount_path == folder or self.mount_path.startswith(f"{folder}/")
            for folder in RESERVED_FOLDERS
        ):
            taken = ", ".join(RESERVED_FOLDERS)
            remedy = f"must not be or lie below {taken}: choose another folder"
            raise incoherent("VolumeMount", (("mountPath",), self.mount_path, remedy))
        return self
