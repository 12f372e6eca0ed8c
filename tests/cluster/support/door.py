"""Writes of AlignmentJobs with the strict validation of kubectl: unknown fields are errors."""

import json
from typing import Any

from kubernetes import client

from kubealign.spec.job import GROUP, VERSION
from kubealign_operator.crd.definition import NAME, PLURAL, crd_manifest

from .control_plane import ControlPlane

Job = dict[str, Any]

_SECONDS = 60


#: Types of values that older versions name in their messages: until 1.34 those of rules, until 1.33 those of
#: duplicates.
_OLDER_WORDING = {
    'Invalid value: "object": ': "Invalid value: ",
    "Duplicate value: map[string]interface {}": "Duplicate value: ",
}


class Refused(Exception):
    """The API server rejected a request; the text is its message, as Kubernetes 1.35 words it."""

    def __init__(self, message: str) -> None:
        for older, now in _OLDER_WORDING.items():
            message = message.replace(older, now)
        super().__init__(message)


def define(control_plane: ControlPlane) -> None:
    """Apply the CustomResourceDefinition and wait until it is established, unless the cluster has it."""
    if control_plane.kubectl("get", f"crd/{NAME}", "--ignore-not-found", "-o", "name"):
        return
    control_plane.kubectl("apply", "--server-side", "-f", "-", stdin=crd_manifest())
    # Unlike the second, the first wait works while the definition has no conditions yet.
    for state in ("jsonpath={.status.acceptedNames.plural}=" + PLURAL, "condition=Established"):
        control_plane.kubectl.wait_for(f"crd/{NAME}", state, seconds=_SECONDS)


def undefine(control_plane: ControlPlane) -> None:
    """Delete the CustomResourceDefinition with every job, if the cluster has it.

    Helm adopts no definition that it did not make."""
    control_plane.kubectl(
        "delete", "crd", NAME, "--ignore-not-found", f"--timeout={_SECONDS}s", timeout=_SECONDS + 10
    )


def delete_jobs(control_plane: ControlPlane) -> None:
    """Delete every job of the cluster, and wait until they are gone."""
    limit = f"--timeout={_SECONDS}s"
    control_plane.kubectl("delete", PLURAL, "--all", "--all-namespaces", limit, timeout=_SECONDS + 10)


class Door:
    """AlignmentJobs of one namespace. Every method raises Refused where the API server rejects a request."""

    def __init__(self, api: client.ApiClient, namespace: str) -> None:
        self._objects = client.CustomObjectsApi(api)
        self._namespace = namespace

    def admit(self, job: Job) -> Job:
        """Create the job as a dry run and return the object that would be stored."""
        return self._create(job, dry_run="All")

    def create(self, job: Job) -> Job:
        """Create the job and return the stored object."""
        return self._create(job)

    def patch(self, name: str, changes: Job) -> Job:
        """Apply a merge patch and return the resulting object."""
        try:
            patched: Job = self._objects.patch_namespaced_custom_object(
                GROUP, VERSION, self._namespace, PLURAL, name, changes, field_validation="Strict"
            )
        except client.ApiException as error:
            raise _refused(error) from error
        return patched

    def _create(self, job: Job, **options: str) -> Job:
        try:
            created: Job = self._objects.create_namespaced_custom_object(
                GROUP, VERSION, self._namespace, PLURAL, job, field_validation="Strict", **options
            )
        except client.ApiException as error:
            raise _refused(error) from error
        return created


def _refused(error: client.ApiException) -> Exception:
    return Refused(json.loads(error.body)["message"]) if error.status in (400, 422) else error
