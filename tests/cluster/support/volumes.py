"""Persistent volumes backed by folders of this machine."""

from pathlib import Path

from kubernetes import client

from .kubectl import Kubectl

_SIZE = "10Gi"


def volume(api: client.ApiClient, kubectl: Kubectl, claim: str, namespace: str, path: Path) -> None:
    """Create a claim in `namespace` bound to the folder `path`, which is created where missing.

    The folder is world-writable: pods run as users unknown to this machine, and a pod's fsGroup does not
    change the owner of a host folder. The volume is called NAMESPACE-CLAIM. Deleting the claim keeps the
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
    # A claim that its controller sees before the volume waits fifteen seconds for the next sync.
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
    for persistent_volume in core.list_persistent_volume().items:
        reference = persistent_volume.spec and persistent_volume.spec.claim_ref
        name = persistent_volume.metadata and persistent_volume.metadata.name
        if name and reference and reference.namespace == namespace:
            core.delete_persistent_volume(name)
