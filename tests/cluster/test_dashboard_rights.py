"""Authorization of the dashboard: callers have exactly the rights that the cluster grants them."""

import json
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from kubernetes import client

from cluster.support.accounts import account, ending_at, kubeconfig
from cluster.support.cluster_jobs import apply, rloo, sft
from cluster.support.control_plane import ControlPlane
from cluster.support.dashboard_process import ACCOUNT, DashboardProcess, charts_account
from cluster.support.programs import find

pytestmark = pytest.mark.skipif(find("helm") is None, reason="helm is not built: `make cluster-tools`")

_GROUP = "kubealign.dev"
VIEW: list[dict[str, Any]] = [
    {
        "apiGroups": [_GROUP],
        "resources": ["alignmentjobs", "alignmentjobs/scale"],
        "verbs": ["get", "list", "watch"],
    },
    {"apiGroups": [""], "resources": ["pods", "pods/log"], "verbs": ["get", "list"]},
    {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["list"]},
]
EDIT: list[dict[str, Any]] = [
    *VIEW,
    {
        "apiGroups": [_GROUP],
        "resources": ["alignmentjobs", "alignmentjobs/scale"],
        "verbs": ["create", "patch", "update", "delete"],
    },
]


@dataclass(frozen=True)
class Board:
    """A dashboard over two teams' jobs, with tokens of members of both teams."""

    process: DashboardProcess
    control_plane: ControlPlane
    team: str
    others: str
    viewer: str
    editor: str
    stranger: str
    own_kubeconfig: Path

    @property
    def jobs(self) -> str:
        return f"/namespaces/{self.team}/alignmentjobs"

    def ask(self, token: str | None, method: str, path: str, **how: Any) -> httpx.Response:
        with self.process.client(token) as asking:
            return asking.request(method, path, **how)


@pytest.fixture(scope="module")
def board(
    control_plane: ControlPlane, known: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Board]:
    folder = tmp_path_factory.mktemp("dashboard")
    mark = uuid.uuid4().hex[:8]
    platform, team, others = (f"{part}-{mark}" for part in ("platform", "team", "others"))
    with ExitStack() as stack:
        for name in (platform, team, others):
            control_plane.kubectl.create_namespace(name)
            stack.callback(control_plane.kubectl, "delete", "namespace", name, "--wait=false")
        apply(control_plane, team, rloo("sums"), sft("start"))
        apply(control_plane, others, sft("theirs"))
        own = kubeconfig(
            control_plane,
            folder / "own.kubeconfig",
            stack.enter_context(charts_account(control_plane, folder / "helm", platform)),
        )
        process = stack.enter_context(DashboardProcess(folder, own))
        yield Board(
            process,
            control_plane,
            team,
            others,
            viewer=account(control_plane, team, "viewer", VIEW),
            editor=account(control_plane, team, "editor", EDIT),
            stranger=account(control_plane, others, "stranger", EDIT),
            own_kubeconfig=own,
        )


def routes(board: Board) -> list[tuple[str, str]]:
    """Return (method, path) of every documented operation, with a job of the team."""
    document = board.ask(board.viewer, "GET", "/openapi.json").json()
    result = [
        (method.upper(), path.removeprefix("/api/v1").format(namespace=board.team, name="sums"))
        for path, operations in document["paths"].items()
        for method in operations
    ]
    assert len(result) > 15
    return result


def body_for(method: str, path: str) -> dict[str, Any]:
    if path.endswith("/scale"):
        return {"json": {"spec": {"replicas": 3}}}
    if path.endswith("/suspend"):
        return {"json": {"suspend": True}}
    if method == "PATCH":
        return {
            "content": json.dumps({"spec": {"suspend": True}}),
            "headers": {"Content-Type": "application/merge-patch+json"},
        }
    return {"json": rloo("another")} if method == "POST" else {}


def test_a_token_that_the_cluster_does_not_know_gets_401_on_every_route(board: Board) -> None:
    ended = ending_at(board.control_plane, board.editor, time.time() - 5)
    forged = board.editor[:-6] + ("aaaaaa" if not board.editor.endswith("aaaaaa") else "bbbbbb")
    for token in (None, "nonsense", ended, forged):
        for method, path in routes(board):
            answer = board.ask(token, method, path, **body_for(method, path))
            assert answer.status_code == 401, (method, path, answer.text)
            assert answer.headers["WWW-Authenticate"].startswith("Bearer")
            assert answer.headers["Content-Type"] == "application/problem+json"


def test_a_token_of_another_namespace_gets_403_on_every_route_of_a_job(board: Board) -> None:
    asked = [route for route in routes(board) if "/namespaces/" in route[1]]
    assert len(asked) > 12
    for method, path in asked:
        answer = board.ask(board.stranger, method, path, **body_for(method, path))
        assert answer.status_code == 403, (method, path, answer.text)
        assert board.others not in answer.text.replace(f"serviceaccount:{board.others}", "")
    # A caller without rights cannot tell whether a job exists.
    assert board.ask(board.stranger, "GET", f"{board.jobs}/none").status_code == 403
    assert board.ask(board.viewer, "GET", f"{board.jobs}/none").status_code == 404


def test_a_token_works_until_it_ends_and_not_a_second_longer(board: Board) -> None:
    ends = time.time() + 6
    brief = ending_at(board.control_plane, board.viewer, ends)
    assert board.ask(brief, "GET", board.jobs).status_code == 200
    while time.time() < ends + 0.2:
        time.sleep(0.1)
    assert board.ask(brief, "GET", board.jobs).status_code == 401


def test_everybody_sees_their_own_namespaces(board: Board) -> None:
    for token, namespace in ((board.viewer, board.team), (board.stranger, board.others)):
        assert board.ask(token, "GET", "/namespaces").json() == {"items": [namespace]}
        listed = board.ask(token, "GET", "/alignmentjobs").json()
        assert {job["metadata"]["namespace"] for job in listed["items"]} == {namespace}
    everything = board.ask(board.control_plane.token, "GET", "/alignmentjobs").json()
    assert {job["metadata"]["namespace"] for job in everything["items"]} == {board.team, board.others}
    session = board.ask(board.viewer, "GET", "/session").json()
    assert session["user"] == f"system:serviceaccount:{board.team}:viewer"
    assert (session["site"], session["readOnly"]) == ("cluster", False)


def test_a_viewer_may_not_change_anything(board: Board) -> None:
    changes = [route for route in routes(board) if route[0] != "GET" and "/namespaces/" in route[1]]
    assert {method for method, _ in changes} == {"POST", "PUT", "PATCH", "DELETE"}
    for method, path in changes:
        answer = board.ask(board.viewer, method, path, **body_for(method, path))
        assert answer.status_code == 403, (method, path, answer.text)
    for path in ("", "/sums", "/sums/scale", "/sums/roles", "/sums/events", "/sums/logs", "/sums/health"):
        answer = board.ask(board.viewer, "GET", board.jobs + path)
        assert answer.status_code == 200, (path, answer.text)


def test_changes_use_the_callers_rights(board: Board) -> None:
    """The dashboard's account may change nothing, so every change uses the caller's rights."""
    review = client.AuthorizationV1Api(board.control_plane.api).create_subject_access_review
    platform = "platform-" + board.team.removeprefix("team-")
    user = f"system:serviceaccount:{platform}:{ACCOUNT}"
    for verb, resource in (("create", ""), ("patch", ""), ("delete", ""), ("patch", "scale")):
        asked = client.V1ResourceAttributes(
            group=_GROUP, resource="alignmentjobs", subresource=resource, namespace=board.team, verb=verb
        )
        spec = client.V1SubjectAccessReviewSpec(user=user, resource_attributes=asked)
        assert not review(client.V1SubjectAccessReview(spec=spec)).status.allowed
    with board.process.client(board.editor) as asking:
        response = asking.post(board.jobs, json=rloo("mine"))
        assert response.status_code == 201, response.text
        job = f"{board.jobs}/mine"
        # Reads see the write at once.
        assert asking.get(job).status_code == 200
        assert asking.put(f"{job}/scale", json={"spec": {"replicas": 5}}).json()["spec"] == {"replicas": 5}
        assert asking.put(f"{job}/suspend", json={"suspend": True}).json()["spec"]["suspend"] is True
        stored = client.CustomObjectsApi(board.control_plane.api).get_namespaced_custom_object(
            _GROUP, "v1alpha1", board.team, "alignmentjobs", "mine"
        )
        assert stored["spec"]["rollout"]["replicas"] == 5 and stored["spec"]["suspend"] is True
        assert asking.get(job).json()["spec"]["suspend"] is True
        wrong = asking.post(board.jobs, json=rloo("wrong", maxSteps=0))
        assert wrong.status_code == 422
        assert "spec.maxSteps" in {error["path"] for error in wrong.json()["errors"]}
        assert asking.post(board.jobs, json=rloo("mine")).status_code == 409
        assert asking.delete(job).status_code == 200
        assert asking.get(job).status_code == 404


def test_a_revoked_right_or_account_takes_effect_within_seconds(board: Board) -> None:
    tokens = {
        403: account(board.control_plane, board.team, "demoted", VIEW),
        401: account(board.control_plane, board.team, "leaver", VIEW),
    }
    for token in tokens.values():
        assert board.ask(token, "GET", board.jobs).status_code == 200
    board.control_plane.kubectl("delete", "rolebinding", "demoted", "-n", board.team)
    board.control_plane.kubectl("delete", "serviceaccount", "leaver", "-n", board.team)
    deadline = time.monotonic() + 30
    for status, token in tokens.items():
        while board.ask(token, "GET", board.jobs).status_code != status:
            assert time.monotonic() < deadline, status
            time.sleep(0.2)


def test_a_read_only_dashboard_changes_nothing(board: Board, tmp_path: Path) -> None:
    with DashboardProcess(tmp_path, board.own_kubeconfig, READ_ONLY="true") as process:
        reading = replace(board, process=process)
        for method, path in routes(reading):
            if method == "GET" or "/namespaces/" not in path:
                continue
            answer = reading.ask(board.editor, method, path, **body_for(method, path))
            assert answer.status_code == 403 and "read" in answer.json()["detail"], (method, path)
        assert reading.ask(board.editor, "GET", board.jobs).status_code == 200
        assert reading.ask(board.editor, "GET", "/session").json()["readOnly"] is True
