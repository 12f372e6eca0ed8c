"""Volumes that are folders of this machine."""

from pathlib import Path

from kubernetes import client

from .kubectl import Kubectl

_SIZE = "10Gi"


def volume(api: client.ApiClient, kubectl: Kubectl, claim: str, namespace: str, path: Path) -> None:
    """A claim that pods of `namespace` may mount, bound to the folder `path`, made where it is missing.

    Everybody may write to the folder: pods run as users that this machine does not know, and a host's folder
    gets no owner from a pod's fsGroup. The volume is called NAMESPACE-CLAIM. Deleting the claim keeps the
    files; `delete_volumes` deletes the volume."""
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o777)
    core = client.CoreV1Api(api)
    name = f"{namespace}-{claim}"
    core.create_persistent_volume(
        client.V1PersistentVolume(
            metadata=client.V1ObjectMeta(name=name),
            spec=client.V1PersistentVolumeSpec(
                access_modes=["ReadWriteMany"],
                capacity={"storage": _SIZE},
                claim_ref=client.V1ObjectReference(namespace=namespace, name=claim),
                host_path=client.V1HostPathVolumeSource(path=str(path)),
                persistent_volume_reclaim_policy="Retain",
                storage_class_name="",
            ),
        )
    )
    # A claim that its controller sees before the volume waits fifteen seconds for the next look.
    kubectl.wait_for(f"pv/{name}", "jsonpath={.status.phase}=Available")
    core.create_namespaced_persistent_volume_claim(
        namespace,
        client.V1PersistentVolumeClaim(
            metadata=client.V1ObjectMeta(name=claim),
            spec=client.V1PersistentVolumeClaimSpec(
                access_modes=["ReadWriteMany"],
                resources=client.V1VolumeResourceRequirements(requests={"storage": _SIZE}),
                storage_class_name="",
                volume_name=name,
            ),
        ),
    )
    kubectl.wait_for(f"pv/{name}", "jsonpath={.status.phase}=Bound")


def delete_volumes(api: client.ApiClient, namespace: str) -> None:
    """Delete the volumes that `volume` made for the claims of a namespace; the folders stay."""
    core = client.CoreV1Api(api)
    for found in core.list_persistent_volume().items:
        reference = found.spec and found.spec.claim_ref
        name = found.metadata and found.metadata.name
        if name and reference and reference.namespace == namespace:
            core.delete_persistent_volume(name)
