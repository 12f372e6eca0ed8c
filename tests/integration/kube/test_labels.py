"""Labels of people as ConfigMaps, against a server that keeps objects as the API server does."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from integration.kube.api_server import ScriptedServer, refuses
from kubealign.client.backends.cluster.labels import list_labels, store_label
from kubealign.client.errors import Forbidden
from kubealign.client.records import JobRecord
from kubealign.human_labels import HumanLabel, LabelledResponse, Verdict
from kubealign.kube.api import KubernetesApi
from kubealign.kube.merge_patch import apply_merge_patch

JOB = JobRecord({"metadata": {"name": "sums", "namespace": "team", "uid": "uid-1"}, "spec": {}})
LABEL = HumanLabel("s1", Verdict.LEFT, "ann", 1.0, "p", "prompt", LabelledResponse("team", "sums", 0, "é"))


class ConfigMapServer:
    """Keeps ConfigMaps by name."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}

    async def answer(self, request: web.Request) -> web.StreamResponse:
        collection = "/api/v1/namespaces/team/configmaps"
        assert request.path.startswith(collection)
        if request.method == "GET":
            key, _, value = request.query["labelSelector"].partition("=")
            items = [item for item in self.objects.values() if item["metadata"]["labels"].get(key) == value]
            return web.json_response({"metadata": {"resourceVersion": "9"}, "items": items})
        body = await request.json()
        if request.method == "POST":
            name = body["metadata"]["name"]
            if name in self.objects:
                return await refuses(409, "AlreadyExists")(request)
            self.objects[name] = body
            return web.json_response(body, status=201)
        assert request.method == "PATCH"
        name = request.path.removeprefix(f"{collection}/")
        self.objects[name] = apply_merge_patch(self.objects[name], body)
        return web.json_response(self.objects[name])


@pytest.fixture
def site() -> ConfigMapServer:
    return ConfigMapServer()


@pytest.fixture
async def api(site: ConfigMapServer) -> AsyncIterator[KubernetesApi]:
    async with ScriptedServer([site.answer]) as connections:
        yield KubernetesApi(connections, "team")


async def test_each_author_has_one_object_of_a_subject(api: KubernetesApi, site: ConfigMapServer) -> None:
    joe = replace(LABEL, author="joe", time=2.0)
    other = replace(LABEL, subject="s2", time=3.0)
    changed = replace(LABEL, verdict=Verdict.RIGHT, time=4.0)
    for label in (LABEL, joe, other, changed):
        await store_label(api, JOB, label)
    assert await list_labels(api, JOB) == [joe, other, changed]
    assert len(site.objects) == 3
    (owner,) = next(iter(site.objects.values()))["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("AlignmentJob", "sums", "uid-1")


async def test_unreadable_objects_hide_no_label(api: KubernetesApi, site: ConfigMapServer) -> None:
    await store_label(api, JOB, LABEL)
    (stored,) = site.objects.values()
    for index, text in enumerate(("{", "[]", json.dumps({"subject": "x"}))):
        site.objects[f"odd-{index}"] = stored | {"data": {"label.json": text}}
    site.objects["empty"] = stored | {"data": None}
    assert await list_labels(api, JOB) == [LABEL]


async def test_a_job_of_the_same_name_takes_over_an_object(api: KubernetesApi) -> None:
    await store_label(api, JOB, LABEL)
    later = JobRecord({"metadata": {"name": "sums", "namespace": "team", "uid": "uid-2"}, "spec": {}})
    assert await list_labels(api, later) == []
    await store_label(api, later, LABEL)
    assert await list_labels(api, later) == [LABEL]
    assert await list_labels(api, JOB) == []


async def test_a_missing_right_is_reported() -> None:
    async with ScriptedServer([refuses(403, "Forbidden")]) as connections:
        api = KubernetesApi(connections, "team")
        with pytest.raises(Forbidden):
            await store_label(api, JOB, LABEL)
        with pytest.raises(Forbidden):
            await list_labels(api, JOB)
