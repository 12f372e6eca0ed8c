"""Logs of pods, followed across failures."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from kubealign.client.backends.cluster.logs import (
    LogSelection,
    follow_logs,
    read_logs,
    read_previous_logs,
)
from kubealign.client.errors import Forbidden, NotPossible, Unavailable
from kubealign.client.records import JobRef, LogLine
from kubealign.kube.api import KubernetesApi

Json = dict[str, Any]
REF = JobRef("team", "one")


def pod(process: str, uid: str, state: str = "running") -> Json:
    labels = {"kubealign.dev/process": process, "kubealign.dev/role": process.split("-")[0]}
    metadata = {"name": f"one-{process}", "namespace": "team", "uid": uid, "labels": labels}
    metadata["resourceVersion"] = f"{uid}-{state}"
    return {"metadata": metadata, "status": {"containerStatuses": [{"name": "main", "state": {state: {}}}]}}


@dataclass
class Cluster:
    """API responses for some pods.

    `logs`: by uid, one list per log request, whose last entry may be an error.
    """

    pods: list[Json]
    logs: dict[str, list[list[str | Exception]]]
    later: asyncio.Queue[Json] = field(default_factory=asyncio.Queue)
    asked: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)

    async def list(self, path: str, query: Mapping[str, Any]) -> Json:
        return {"items": list(self.pods), "metadata": {"resourceVersion": "1"}}

    async def get(self, path: str) -> Json:
        return next(value for value in self.pods if path.endswith(f"/{value['metadata']['name']}"))

    async def watch(self, path: str, query: Mapping[str, Any]) -> AsyncGenerator[Json]:
        while True:
            item = await self.later.get()
            self.pods = [
                value for value in self.pods if value["metadata"]["name"] != item["metadata"]["name"]
            ]
            self.pods.append(item)
            yield {"type": "MODIFIED", "object": item}

    async def stream_lines(self, path: str, query: Mapping[str, Any]) -> AsyncGenerator[str]:
        self.asked.append((path, dict(query)))
        name = path.split("/")[-2]
        uid = next(value["metadata"]["uid"] for value in self.pods if value["metadata"]["name"] == name)
        for line in self.logs[uid].pop(0):
            if isinstance(line, Exception):
                raise line
            yield line

    @property
    def api(self) -> KubernetesApi:
        return cast(KubernetesApi, self)


def stamped(second: int, text: str) -> str:
    return f"2026-01-01T00:00:{second:02}.{second:09}Z {text}"


async def test_broken_connection_resumes_after_the_last_line() -> None:
    first = [stamped(1, "a"), stamped(2, "b"), Unavailable("gone")]
    # sinceTime has a resolution of seconds, so the last line is repeated.
    repeated = [stamped(2, "b"), stamped(3, "c")]
    cluster = Cluster([pod("driver", "u1")], {"u1": [first, repeated, []]})
    over = asyncio.Event()

    async def read() -> list[str]:
        lines_read = []
        async for line in follow_logs(cluster.api, REF, "u", LogSelection(tail=5), over):
            lines_read.append(line.text)
            if line.text == "c":
                cluster.pods = [pod("driver", "u1", "terminated")]
                over.set()
        return lines_read

    assert await asyncio.wait_for(read(), 30) == ["a", "b", "c"]
    queries = [query for _, query in cluster.asked]
    assert queries[0]["tailLines"] == 5 and "sinceTime" not in queries[0]
    assert queries[1]["sinceTime"] == "2026-01-01T00:00:02Z" and "tailLines" not in queries[1]


async def test_later_pod_is_read_from_its_first_line() -> None:
    waiting = pod("rollout-0", "u1", "waiting")
    logs: dict[str, list[list[str | Exception]]] = {"u1": [[stamped(1, "a")]], "u2": [[stamped(2, "b")]]}
    cluster = Cluster([waiting], logs)
    over = asyncio.Event()
    lines = follow_logs(cluster.api, REF, "u", LogSelection(tail=1), over)
    first = asyncio.ensure_future(anext(lines))
    await asyncio.sleep(0)
    assert not first.done()
    await cluster.later.put(pod("rollout-0", "u1", "terminated"))
    assert (await asyncio.wait_for(first, 30)).text == "a"
    # The replacement is another pod of the same name.
    await cluster.later.put(pod("rollout-0", "u2", "terminated"))
    assert (await asyncio.wait_for(anext(lines), 30)).text == "b"
    over.set()
    assert [line async for line in lines] == []
    assert all("tailLines" not in query for _, query in cluster.asked)


async def test_read_error_is_raised() -> None:
    cluster = Cluster([pod("driver", "u1")], {"u1": [["unable to retrieve container logs for x"]]})
    lines_read = [line async for line in read_logs(cluster.api, REF, "u", LogSelection())]
    assert [line.text for line in lines_read] == ["unable to retrieve container logs for x"]
    cluster.logs["u1"] = [[stamped(1, "a"), Unavailable("the server went away")]]
    with pytest.raises(Unavailable):
        [line async for line in read_logs(cluster.api, REF, "u", LogSelection())]


async def test_forbidden_follower_raises() -> None:
    cluster = Cluster([pod("driver", "u1")], {"u1": [[Forbidden("not you")]]})
    with pytest.raises(Forbidden):
        async with asyncio.timeout(30):
            [line async for line in follow_logs(cluster.api, REF, "u", LogSelection(), asyncio.Event())]


async def test_closing_the_reader_cancels_all_tasks() -> None:
    endless: list[str | Exception] = [stamped(1, f"{number}") for number in range(5000)]
    cluster = Cluster([pod("driver", "u1")], {"u1": [endless]})
    before = asyncio.all_tasks()
    lines = follow_logs(cluster.api, REF, "u", LogSelection(), asyncio.Event())
    assert (await asyncio.wait_for(anext(lines), 30)).text == "0"
    await asyncio.wait_for(lines.aclose(), 30)
    assert asyncio.all_tasks() == before


def test_logs_are_filtered_by_process_and_role() -> None:
    pods = [pod("rollout-0", "u1"), pod("rollout-1", "u2"), pod("driver", "u3"), pod("prepare", "u4")]

    def names(process: str | None, role: str | None) -> list[str]:
        selection = LogSelection(process, role)
        return [value["metadata"]["name"] for value in pods if selection.includes_pod(value)]

    assert names(None, None) == ["one-rollout-0", "one-rollout-1", "one-driver", "one-prepare"]
    assert names("rollout-1", None) == ["one-rollout-1"]
    assert names(None, "rollout") == ["one-rollout-0", "one-rollout-1"]
    assert names("driver", "rollout") == []


async def test_lines_of_a_pod_with_several_ranks_belong_to_the_rank_that_wrote_them() -> None:
    shared = pod("trainer-2", "u1")
    shared["metadata"]["labels"]["kubealign.dev/processes"] = "2"

    def line(second: int, process: str, message: str) -> str:
        return stamped(second, f'{{"time":"t","job":"j","process":"{process}","message":"{message}"}}')

    lines: list[str | Exception] = [
        line(1, "trainer-2", "a"),
        line(2, "trainer-3", "b"),
        stamped(3, "Traceback (most recent call last):"),
        line(4, "trainer-9", "no rank of this pod"),
    ]
    cluster = Cluster([shared, pod("driver", "u2")], {"u1": [lines, lines], "u2": [[]]})

    async def read(selection: LogSelection) -> list[LogLine]:
        return [line async for line in read_logs(cluster.api, REF, "u", selection)]

    every = await read(LogSelection())
    assert [one.process for one in every] == ["trainer-2", "trainer-3", "trainer-2", "trainer-2"]
    (own,) = await read(LogSelection("trainer-3", tail=5))
    assert own.text.endswith('"message":"b"}')
    # The tail is that of all ranks together.
    assert cluster.asked[-1][1]["tailLines"] == 10
    assert not LogSelection("trainer-1").includes_pod(shared)


def attempt(process: str, number: int, phase: str) -> Json:
    """Return the pod of one attempt of a process, whose uid is its name."""
    state = "running" if phase == "Running" else "terminated"
    value = pod(process, f"one-{process}-{number}", state)
    value["metadata"]["name"] = f"one-{process}-{number}"
    value["metadata"]["labels"]["kubealign.dev/attempt"] = str(number)
    value["status"]["phase"] = phase
    return value


def attempts(*pods: Json) -> Cluster:
    names = [value["metadata"]["name"] for value in pods]
    return Cluster(list(pods), {name: [[stamped(1, name)]] for name in names})


async def previous(cluster: Cluster, selection: LogSelection, *, finished: bool = False) -> list[str]:
    lines = read_previous_logs(cluster.api, REF, "u", selection, finished=finished)
    return [line.text async for line in lines]


async def test_previous_logs_are_those_of_the_last_failed_attempts() -> None:
    pods = (
        attempt("trainer-0", 2, "Running"),
        attempt("trainer-0", 1, "Failed"),
        attempt("rollout-0", 0, "Running"),
        # Its successor waits for the restart backoff.
        attempt("rollout-1", 3, "Failed"),
        attempt("prepare", 1, "Succeeded"),
    )
    assert await previous(attempts(*pods), LogSelection()) == ["one-rollout-1-3", "one-trainer-0-1"]
    assert await previous(attempts(*pods), LogSelection(role="trainer")) == ["one-trainer-0-1"]
    cluster = attempts(*pods)
    present = [line.text async for line in read_logs(cluster.api, REF, "u", LogSelection(role="trainer"))]
    assert present == ["one-trainer-0-2"]
    for selection, words in (
        (LogSelection("rollout-0"), "process rollout-0"),
        (LogSelection(role="driver"), "a process with the role driver"),
    ):
        with pytest.raises(NotPossible, match=f"team/one has no log of a failed attempt of {words}: none"):
            await previous(attempts(*pods), selection)


async def test_the_last_pod_of_a_finished_job_is_no_previous_attempt() -> None:
    pods = (attempt("trainer-0", 1, "Failed"), attempt("trainer-0", 0, "Failed"))
    assert await previous(attempts(*pods), LogSelection(), finished=True) == ["one-trainer-0-0"]


async def test_a_follower_skips_the_logs_of_earlier_attempts() -> None:
    cluster = attempts(attempt("trainer-0", 0, "Failed"), attempt("trainer-0", 1, "Failed"))
    over = asyncio.Event()
    lines = follow_logs(cluster.api, REF, "u", LogSelection(), over)
    assert (await asyncio.wait_for(anext(lines), 30)).text == "one-trainer-0-1"
    await cluster.later.put(attempt("trainer-0", 0, "Failed"))
    over.set()
    assert [line.text async for line in lines] == []
