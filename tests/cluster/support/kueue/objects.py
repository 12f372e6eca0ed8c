"""Access to Kueue's objects, with the strict validation of kubectl."""

import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import pytest
from kubernetes import client

from ..behaviour import Json
from ..control_plane import ControlPlane

GROUP = "kueue.x-k8s.io"
_VERSION = "v1beta2"
_API = (GROUP, _VERSION)
_SECONDS = 60.0
_POLL_SECONDS = 0.05


class QueueRefused(Exception):
    """The API server, or one of Kueue's webhooks, rejected an object; the text is the message."""


class KueueObjects:
    """Kueue's objects of one namespace and of the cluster.

    The methods that write raise QueueRefused. `plural` is the resource's name, such as "workloads"."""

    def __init__(self, control_plane: ControlPlane, namespace: str) -> None:
        self.namespace = namespace
        self._kubectl = control_plane.kubectl
        self._custom = client.CustomObjectsApi(control_plane.api)

    def create(self, kind: str, plural: str, name: str, body: Json) -> None:
        manifest = _manifest(kind, name, body)
        self._write(self._custom.create_namespaced_custom_object, self.namespace, plural, manifest)

    def create_for_cluster(self, kind: str, plural: str, name: str, body: Json) -> None:
        self._write(self._custom.create_cluster_custom_object, plural, _manifest(kind, name, body))

    def get(self, plural: str, name: str) -> Any:
        return self._custom.get_namespaced_custom_object(*_API, self.namespace, plural, name)

    def get_of_cluster(self, plural: str, name: str) -> Any:
        return self._custom.get_cluster_custom_object(*_API, plural, name)

    def list_all(self, plural: str) -> list[Any]:
        listed: Any = self._custom.list_namespaced_custom_object(*_API, self.namespace, plural)
        return list(listed["items"])

    def list_of_cluster(self, plural: str) -> list[Any]:
        listed: Any = self._custom.list_cluster_custom_object(*_API, plural)
        return list(listed["items"])

    def patch(self, plural: str, name: str, changes: Json) -> None:
        """Apply a merge patch to metadata and spec."""
        self._write(self._custom.patch_namespaced_custom_object, self.namespace, plural, name, changes)

    def patch_of_cluster(self, plural: str, name: str, changes: Json) -> None:
        """Apply a merge patch to metadata and spec."""
        self._write(self._custom.patch_cluster_custom_object, plural, name, changes)

    def patch_status(self, plural: str, name: str, version: str, status: Json) -> bool:
        """Apply a merge patch to the status; return False when the object is no longer of this version."""
        body = {"metadata": {"resourceVersion": version}, "status": status}
        try:
            self._write(
                self._custom.patch_namespaced_custom_object_status, self.namespace, plural, name, body
            )
        except client.ApiException as error:
            if error.status == HTTPStatus.CONFLICT:
                return False
            raise
        return True

    def delete(self, plural: str, name: str) -> None:
        self._custom.delete_namespaced_custom_object(*_API, self.namespace, plural, name)

    def delete_all(self, plural: str) -> None:
        self._custom.delete_collection_namespaced_custom_object(*_API, self.namespace, plural)

    def delete_of_cluster(self, plural: str, name: str) -> None:
        self._custom.delete_cluster_custom_object(*_API, plural, name)

    def remove_finalizers_of_cluster(self, plural: str, name: str) -> None:
        """Remove the finalizers of an object that is being deleted, and may be gone."""
        try:
            self.patch_of_cluster(plural, name, {"metadata": {"finalizers": None}})
        except client.ApiException as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise

    def until(self, is_met: Callable[[], bool], what: str, seconds: float = _SECONDS) -> None:
        """Wait until `is_met` returns True. Fails the test after `seconds`, with the namespace's objects."""
        end = time.monotonic() + seconds
        while not is_met():
            if time.monotonic() > end:
                state = self._kubectl("get", "workloads,localqueues", "-n", self.namespace, "-o", "yaml")
                pytest.fail(f"waited {seconds:g} s for {what}; there are\n{state}")
            time.sleep(_POLL_SECONDS)

    @staticmethod
    def _write(method: Callable[..., Any], *arguments: Any) -> None:
        try:
            method(*_API, *arguments, field_validation="Strict")
        except client.ApiException as error:
            rejections = (HTTPStatus.BAD_REQUEST, HTTPStatus.FORBIDDEN, HTTPStatus.UNPROCESSABLE_ENTITY)
            if error.status in rejections:
                raise QueueRefused(str(error.body)) from error
            raise


def _manifest(kind: str, name: str, body: Json) -> Json:
    return {"apiVersion": f"{GROUP}/{_VERSION}", "kind": kind, "metadata": {"name": name}, **body}
