"""Dashboard of a cluster during changes and outages: pages, streams, metrics, shutdown."""

import json
import ssl
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from cluster.support.accounts import account, kubeconfig
from cluster.support.cluster_jobs import apply, sft
from cluster.support.control_plane import ControlPlane
from cluster.support.daemon import DaemonFailed
from cluster.support.dashboard_process import DashboardProcess, charts_account
from cluster.support.dashboard_redis import DashboardRedis
from cluster.support.programs import find
from support.free_address import free_port

pytestmark = pytest.mark.skipif(find("helm") is None, reason="helm is not built: `make cluster-tools`")

_SECONDS = 60.0


@dataclass(frozen=True)
class Board:
    process: DashboardProcess
    control_plane: ControlPlane
    redis: DashboardRedis
    team: str
    own_kubeconfig: Path

    @property
    def jobs(self) -> str:
        return f"/namespaces/{self.team}/alignmentjobs"

    def asking(self) -> httpx.Client:
        return self.process.client(self.control_plane.token)


@pytest.fixture(scope="module")
def board(
    control_plane: ControlPlane, known: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Board]:
    folder = tmp_path_factory.mktemp("dashboard")
    mark = uuid.uuid4().hex[:8]
    platform, team = f"platform-{mark}", f"team-{mark}"
    with ExitStack() as stack:
        for name in (platform, team):
            control_plane.kubectl.create_namespace(name)
            stack.callback(control_plane.kubectl, "delete", "namespace", name, "--wait=false")
        redis = stack.enter_context(DashboardRedis(folder))
        # watchNamespaces gives a Role in the team's namespace, and the cluster's built-in role for reviews.
        account = charts_account(control_plane, folder / "helm", platform, {"watchNamespaces": [team]})
        own = kubeconfig(control_plane, folder / "own.kubeconfig", stack.enter_context(account))
        process = stack.enter_context(DashboardProcess(folder, own, NAMESPACES=team, **redis.settings))
        yield Board(process, control_plane, redis, team, own)


class Stream:
    """Events of a stream, read in a thread until the stream ends."""

    def __init__(self, asking: httpx.Client, path: str) -> None:
        self.events: list[tuple[str, Any]] = []
        self.ended = threading.Event()
        self._more = threading.Condition()
        self._reader = threading.Thread(target=self._read, args=(asking, path), daemon=True)
        self._reader.start()

    def until(self, so: Any, what: str) -> None:
        with self._more:
            assert self._more.wait_for(lambda: any(map(so, self.events)), _SECONDS), (what, self.events)

    def _read(self, asking: httpx.Client, path: str) -> None:
        name = ""
        try:
            with asking.stream("GET", path, timeout=_SECONDS) as answer:
                for line in answer.iter_lines():
                    field, _, value = line.partition(": ")
                    if field == "event":
                        name = value
                    elif field == "data":
                        with self._more:
                            self.events.append((name, json.loads(value)))
                            self._more.notify_all()
        except httpx.TransportError as error:
            with self._more:
                self.events.append(("broken", str(error)))
                self._more.notify_all()
        self.ended.set()


def labelled(name: str, text: str) -> Any:
    """Return a predicate on events: the job of this name has the label `mark` with this value."""

    def so(event: tuple[str, Any]) -> bool:
        kind, data = event
        jobs = data["items"] if kind == "jobs" else [data] if kind == "job" else []
        return any(
            job["metadata"]["name"] == name and job["metadata"].get("labels", {}).get("mark") == text
            for job in jobs
        )

    return so


def mark(board: Board, name: str, text: str) -> None:
    board.control_plane.kubectl("label", "aj", name, f"mark={text}", "--overwrite", "-n", board.team)


def test_pages_go_on_while_jobs_come_and_go(board: Board) -> None:
    apply(board.control_plane, board.team, *(sft(f"page-{number:02}") for number in range(25)))
    with board.asking() as asking:
        query = {"search": "page-", "sort": "name", "limit": 10}
        first = asking.get(board.jobs, params=query).json()
        assert first["metadata"]["total"] == 25
        for gone in ("page-03", "page-09", "page-10"):
            assert asking.delete(f"{board.jobs}/{gone}").status_code == 200
        for name in ("page-00a", "page-12a"):
            assert asking.post(board.jobs, json=sft(name)).status_code == 201
        listed, following = [], first["metadata"]["continue"]
        while following:
            page = asking.get(board.jobs, params={**query, "continue": following}).json()
            listed += [job["metadata"]["name"] for job in page["items"]]
            following = page["metadata"].get("continue")
        expected = sorted({f"page-{number:02}" for number in range(11, 25)} | {"page-12a"})
        assert listed == expected
        everything = asking.get(board.jobs, params={"search": "PAGE-", "limit": 500}).json()
        assert everything["metadata"]["total"] == len(everything["items"]) == 24
        other = asking.get(board.jobs, params={"search": "other", "continue": first["metadata"]["continue"]})
        assert other.status_code == 422 and other.json()["errors"][0]["path"] == "continue"
        assert asking.get(board.jobs, params={"labelSelector": "a=b=c"}).status_code == 422


def test_streams_outlive_the_api_server(board: Board) -> None:
    apply(board.control_plane, board.team, sft("watched"))
    with board.asking() as asking:
        one = Stream(asking, f"{board.jobs}/watched/stream")
        some = Stream(asking, f"/stream?namespace={board.team}")
        one.until(lambda event: event[0] == "job", "the job as it is")
        some.until(lambda event: event[0] == "ready", "the list to be followed")
        mark(board, "watched", "before")
        for stream in (one, some):
            stream.until(labelled("watched", "before"), "the first label")
        board.control_plane.kill_apiserver()
        # Users with a cached authorization still see the cached jobs.
        listed = asking.get(board.jobs)
        assert listed.status_code in (200, 503), listed.text
        board.control_plane.start_apiserver()
        mark(board, "watched", "after")
        for stream in (one, some):
            stream.until(labelled("watched", "after"), "the label after the restart")
        assert asking.delete(f"{board.jobs}/watched").status_code == 200
        one.until(lambda event: event[0] == "gone", "the end of the job")
        some.until(lambda event: event[0] == "gone", "the job to be gone from the list")


def test_metrics_come_from_redis_and_other_pages_need_none(board: Board) -> None:
    apply(board.control_plane, board.team, sft("figures"))
    with board.asking() as asking:
        job = f"{board.jobs}/figures"
        uid = asking.get(job).json()["metadata"]["uid"]
        board.control_plane.kubectl.apply(_pod(uid), namespace=board.team)
        _say(board, 1)
        assert asking.get(f"{job}/metrics").json()["items"][0]["values"] == {"reward/mean": 0.5}
        assert asking.get(f"{job}/samples").json()["items"][0]["response"] == "<b>four</b>"
        [role] = asking.get(f"{job}/roles").json()["items"]
        assert (role["name"], role["role"], role["says"]) == ("driver", "driver", {"step": 1})
        stream = Stream(asking, f"{job}/stream")
        stream.until(lambda event: event[0] == "metrics", "the first step")

        board.redis.daemon.kill()
        for path in ("metrics", "samples"):
            away = asking.get(f"{job}/{path}")
            assert away.status_code == 503 and "Redis" in away.json()["detail"], away.text
            assert away.headers["Retry-After"]
        assert asking.get(job).status_code == asking.get(board.jobs).status_code == 200
        [role] = asking.get(f"{job}/roles").json()["items"]
        assert (role["name"], role["says"], role["silentSeconds"]) == ("driver", {}, None)

        board.redis.start()
        _say(board, 2)
        assert [step["step"] for step in asking.get(f"{job}/metrics").json()["items"]] == [2]
        stream.until(
            lambda event: event[0] == "metrics" and event[1]["items"][-1]["step"] == 2, "the second step"
        )


def _say(board: Board, step: int) -> None:
    """Write metrics, a sample and a heartbeat as the job's driver does."""
    prefix, redis = f"kubealign:{board.team}:figures:", board.redis.client()
    redis.xadd(f"{prefix}metrics", {"step": step, "fence": 1, "json": '{"reward/mean": 0.5}'})
    sample = {"prompt": "2+2", "response": "<b>four</b>", "reward": 1.0}
    redis.xadd(f"{prefix}samples", {"step": step, "json": json.dumps(sample)})
    redis.set(f"{prefix}heartbeat:driver", json.dumps({"step": step}))


def _pod(uid: str) -> dict[str, Any]:
    labels = {"kubealign.dev/job-uid": uid, "kubealign.dev/process": "driver", "kubealign.dev/role": "driver"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "figures-driver-0", "labels": labels},
        "spec": {"containers": [{"name": "main", "image": "none"}]},
    }


def test_both_listeners_work_with_tls_and_streams_end_at_shutdown(board: Board, tmp_path: Path) -> None:
    apply(board.control_plane, board.team, sft("long"))
    pair = board.control_plane.authority.server("dashboard", ["localhost", "127.0.0.1"])
    port = free_port()
    tls = {"TLS_CERT_FILE": pair.certificate, "TLS_KEY_FILE": pair.key, "LISTEN": f"127.0.0.1:{port}"}
    trusted = ssl.create_default_context(cafile=str(board.control_plane.authority.certificate))
    local = f"127.0.0.1:{free_port()}"
    settings = {**tls, "LISTEN_LOCAL": local, "NAMESPACES": board.team}
    process = DashboardProcess(tmp_path, board.own_kubeconfig, **settings)
    process.url = f"http://{local}"
    with process, process.client(board.control_plane.token) as asking:
        headers = {"Authorization": f"Bearer {board.control_plane.token}"}
        address = f"https://127.0.0.1:{port}/api/v1{board.jobs}"
        assert httpx.get(address, headers=headers, verify=trusted, trust_env=False).status_code == 200
        assert httpx.get(f"https://127.0.0.1:{port}/readyz", verify=trusted, trust_env=False).text == "ok\n"
        assert asking.get(board.jobs).status_code == 200
        page = process.get("/metrics")
        assert "kubealign_dashboard_hears_changes 1.0" in page
        stream = Stream(asking, f"{board.jobs}/long/stream")
        stream.until(lambda event: event[0] == "job", "the job")
        process.daemon.stop(_SECONDS)
        assert process.daemon.exit_code == 0
        assert stream.ended.wait(_SECONDS)
        assert "broken" not in dict(stream.events)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"TLS_CERT_FILE": "/none", "TLS_KEY_FILE": "/none"}, "KUBEALIGN_TLS_CERT_FILE held /none"),
        ({"KUBECONFIG": "/none"}, "/none"),
    ],
)
def test_an_unusable_setting_ends_the_dashboard_and_is_named(
    board: Board, tmp_path: Path, settings: dict[str, str], message: str
) -> None:
    process = DashboardProcess(tmp_path, board.own_kubeconfig, **settings)
    with pytest.raises(DaemonFailed, match="ended with 2"):
        process.start()
    assert message in process.daemon.tail()


def test_without_its_own_rights_the_dashboard_is_not_ready(board: Board, tmp_path: Path) -> None:
    token = account(board.control_plane, board.team, "nobody", [])
    process = DashboardProcess(tmp_path, kubeconfig(board.control_plane, tmp_path / "nobody", token))
    process.daemon.start()
    try:
        process.daemon.wait_until(
            lambda: "cannot list resource" in process.get("/readyz"), "it to say why", _SECONDS
        )
        # The dashboard does not blame the caller for its own lack of rights.
        answer = process.client(board.control_plane.token).get(board.jobs)
        assert answer.status_code == 503 and "own account" in answer.json()["detail"]
    finally:
        process.daemon.stop()
