"""The API server's door for AlignmentJobs, as kubectl uses it: unknown fields are errors."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kubernetes import client

from kubealign.spec.job import GROUP, VERSION
from kubealign_operator.crd.definition import NAME, PLURAL, crd_manifest

from .control_plane import ControlPlane

Job = dict[str, Any]

_SECONDS = 60


class Refused(Exception):
    """What the API server said."""


def define(control_plane: ControlPlane) -> None:
    """Make the custom resource known, or bring it up to date."""
    control_plane.kubectl("apply", "--server-side", "-f", "-", stdin=crd_manifest())
    # The first of the two waits also where there are no conditions yet.
    for state in ("jsonpath={.status.acceptedNames.plural}=" + PLURAL, "condition=Established"):
        control_plane.kubectl.wait_for(f"crd/{NAME}", state, seconds=_SECONDS)


@contextmanager
def defined(control_plane: ControlPlane) -> Iterator[None]:
    """The custom resource is known meanwhile. Afterwards it is gone with every job: Helm takes over none that
    it did not make."""
    define(control_plane)
    yield
    control_plane.kubectl("delete", "crd", NAME, f"--timeout={_SECONDS}s", timeout=_SECONDS + 10)


class Door:
    """AlignmentJobs of one namespace. Every method raises Refused where the API server does not agree."""

    def __init__(self, api: client.ApiClient, namespace: str) -> None:
        self._objects = client.CustomObjectsApi(api)
        self._namespace = namespace

    def admit(self, job: Job) -> Job:
        """The object as it would be stored; nothing is."""
        return self._create(job, dry_run="All")

    def create(self, job: Job) -> Job:
        """The stored object."""
        return self._create(job)

    def patch(self, name: str, changes: Job) -> Job:
        """The object after a merge patch."""
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
