"""Volumes of a job's pods, in addition to those that kubealign mounts."""

from enum import StrEnum
from typing import Annotated, TypeAlias

from pydantic import Field, model_validator

from kubealign.spec.base import (
    ABSOLUTE_PATH_PATTERN,
    DNS_LABEL_PATTERN,
    FILE_KEY_PATTERN,
    VOLUME_PATH_PATTERN,
    ObjectName,
    SpecModel,
    field_errors,
    list_map_schema,
    require_exactly_one,
    unique_by,
)
from kubealign.spec.pods.images import ImageName, PullPolicy
from kubealign.spec.pods.quantities import Quantity

#: Volume name prefix and folders that are reserved for the operator.
RESERVED_VOLUME_PREFIX = "kubealign-"
RESERVED_FOLDERS = ("/etc/kubealign", "/run/kubealign", "/volumes", "/dev", "/proc", "/sys")

#: Fields of a volume, of which exactly one is set.
VOLUME_TYPES = ["config_map", "secret", "persistent_volume_claim", "empty_dir", "csi", "image"]

VolumeName: TypeAlias = Annotated[str, Field(pattern=DNS_LABEL_PATTERN, max_length=63)]
FileKey: TypeAlias = Annotated[str, Field(pattern=FILE_KEY_PATTERN, max_length=253)]
RelativePath: TypeAlias = Annotated[str, Field(pattern=VOLUME_PATH_PATTERN, min_length=1, max_length=1024)]

VolumeAttribute: TypeAlias = Annotated[str, Field(pattern=FILE_KEY_PATTERN, max_length=253)]
VolumeAttributeValue: TypeAlias = Annotated[str, Field(max_length=4096)]


class ObjectKeyRef(SpecModel):
    """One key of a ConfigMap or Secret of the job's namespace."""

    name: ObjectName = Field(description="Name of the object.")
    key: FileKey = Field(description="Key in the object.")
    optional: bool | None = Field(None, description="Allow the key to be missing; null: the key is required.")


class KeyPath(SpecModel):
    """A key and the file to which it is written."""

    key: FileKey = Field(description="The key.")
    path: RelativePath = Field(description="Path of the file below the mount path.")


class ConfigMapVolume(SpecModel):
    """The keys of a ConfigMap as files."""

    name: ObjectName = Field(description="Name of the ConfigMap.")
    items: Annotated[list[KeyPath] | None, unique_by("key")] = Field(
        None,
        max_length=64,
        json_schema_extra=list_map_schema("key"),
        description="Keys to project; null: all keys.",
    )
    optional: bool | None = Field(
        None, description="Allow the ConfigMap to be missing; null: it is required."
    )


class SecretVolume(SpecModel):
    """The keys of a Secret as files."""

    secret_name: ObjectName = Field(description="Name of the Secret.")
    items: Annotated[list[KeyPath] | None, unique_by("key")] = Field(
        None,
        max_length=64,
        json_schema_extra=list_map_schema("key"),
        description="Keys to project; null: all keys.",
    )
    optional: bool | None = Field(None, description="Allow the Secret to be missing; null: it is required.")


class ClaimVolume(SpecModel):
    """A PersistentVolumeClaim."""

    claim_name: ObjectName = Field(description="Name of the claim.")
    read_only: bool | None = Field(None, description="Mount the volume read-only.")


class Medium(StrEnum):
    """Memory: a tmpfs, which counts against the pod's memory."""

    MEMORY = "Memory"


class EmptyDirVolume(SpecModel):
    """An empty folder with the lifetime of the pod."""

    medium: Medium | None = Field(None, description="Storage medium; null: the node's disk.")
    size_limit: Quantity | None = Field(None, description="Maximum size; null: unlimited.")


class SecretReference(SpecModel):
    """A Secret of the job's namespace."""

    name: ObjectName = Field(description="Name of the Secret.")


class CsiVolume(SpecModel):
    """A volume that a CSI driver makes for each pod, such as a bucket or a cache of the node."""

    driver: ObjectName = Field(description="Name of the CSI driver, which must support ephemeral volumes.")
    fs_type: Annotated[str, Field(min_length=1, max_length=63)] | None = Field(
        None, description="File system, such as ext4; null: the driver's choice."
    )
    read_only: bool | None = Field(None, description="Mount the volume read-only.")
    volume_attributes: Annotated[dict[VolumeAttribute, VolumeAttributeValue], Field(max_length=64)] | None = (
        Field(None, description="Settings of the driver.")
    )
    node_publish_secret_ref: SecretReference | None = Field(
        None, description="Secret with the credentials of the driver."
    )


class ImageVolume(SpecModel):
    """The files of an OCI image or artefact, read-only, for instance a model.

    Kubernetes 1.35 or newer; 1.33 and 1.34 drop the volume unless their feature gate ImageVolume is on.
    """

    reference: ImageName = Field(description="Image with its registry, and a tag or digest.")
    pull_policy: PullPolicy | None = Field(
        None, description="When the image is pulled; null: Always for the tag latest, else IfNotPresent."
    )


class Volume(SpecModel):
    """A volume of exactly one type."""

    name: VolumeName = Field(description="Name of the volume; names that begin with kubealign- are reserved.")
    config_map: ConfigMapVolume | None = Field(None, description="A ConfigMap.")
    secret: SecretVolume | None = Field(None, description="A Secret.")
    persistent_volume_claim: ClaimVolume | None = Field(None, description="A PersistentVolumeClaim.")
    empty_dir: EmptyDirVolume | None = Field(None, description="An empty folder.")
    csi: CsiVolume | None = Field(None, description="An inline volume of a CSI driver.")
    image: ImageVolume | None = Field(None, description="The files of an image, read-only.")

    @model_validator(mode="after")
    def _sound(self) -> "Volume":
        """Check that one type is set and that the name is not reserved."""
        require_exactly_one(self, VOLUME_TYPES)
        if self.name.startswith(RESERVED_VOLUME_PREFIX):
            remedy = "names that begin with kubealign- are taken: choose another"
            raise field_errors("Volume", (("name",), self.name, remedy))
        return self


class VolumeMount(SpecModel):
    """A mounted volume."""

    name: VolumeName = Field(description="Name of the volume.")
    mount_path: Annotated[str, Field(pattern=ABSOLUTE_PATH_PATTERN, max_length=1024)] = Field(
        description="Absolute path of the mount; not below a folder that kubealign mounts."
    )
    sub_path: RelativePath | None = Field(
        None, description="Folder or file of the volume to mount; null: the whole volume."
    )
    read_only: bool | None = Field(None, description="Mount the volume read-only.")

    @model_validator(mode="after")
    def _own(self) -> "VolumeMount":
        """Reject mount paths below folders that kubealign mounts."""
        if any(
            self.mount_path == folder or self.mount_path.startswith(f"{folder}/")
            for folder in RESERVED_FOLDERS
        ):
            taken = ", ".join(RESERVED_FOLDERS)
            remedy = f"must not be or lie below {taken}: choose another folder"
            raise field_errors("VolumeMount", (("mountPath",), self.mount_path, remedy))
        return self
