"""Cluster backend of the SDK, against a real API server, the real operator, and simulated pods."""

import asyncio
import copy
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.support.behaviour import Exit
from cluster.support.client_errors import refused
from cluster.support.cluster_jobs import finishing, rloo, sft, until_told
from cluster.support.control_plane import ControlPlane
from cluster.support.operator_process import OperatorProcess
from cluster.support.simulated_kubelet import SimulatedKubelet
from cluster.support.team import Team
from kubealign.client.backends.cluster.backend import ClusterBackend, open_cluster
from kubealign.client.backends.cluster.dashboard_discovery import open_telemetry
from kubealign.client.errors import (
    Conflict,
    Forbidden,
    JobExists,
    JobInvalid,
    JobNotFound,
    NotPossible,
    Unauthenticated,
    Unavailable,
)
from kubealign.client.records import JobPage, JobRecord, JobRef, ListQuery, ProcessState
from kubealign.kube.api import KubernetesApi, connect
from kubealign.spec.status import JobPhase

_SECONDS = 60.0


@pytest.fixture
async def site(control_plane: ControlPlane, known: None, namespace: str) -> AsyncIterator[ClusterBackend]:
    """Backend of the team's namespace, as the cluster's administrator."""
    backend = await open_cluster(control_plane.kubeconfig, namespace=namespace)
    yield backend
    await backend.close()


@pytest.fixture
async def api(control_plane: ControlPlane) -> AsyncIterator[KubernetesApi]:
    async with await connect(control_plane.kubeconfig) as new_api:
        yield new_api


async def until_phase(site: ClusterBackend, name: str, phase: JobPhase) -> JobRecord:
    """Watch a job until it has the phase, and return the job."""
    async with asyncio.timeout(_SECONDS), aclosing(site.watch(JobRef(site.namespace, name))) as records:
        async for record in records:
            if record.phase is phase:
                return record
    raise AssertionError(f"{name} was gone before it was {phase}")


async def until_ready(site: ClusterBackend, name: str, process: str) -> None:
    """Wait until a process of the job is ready."""
    async with asyncio.timeout(_SECONDS):
        while True:
            states = {
                record.name: record.state for record in await site.processes(JobRef(site.namespace, name))
            }
            if states.get(process) is ProcessState.READY:
                return
            await asyncio.sleep(0.1)


def names(page: JobPage) -> list[str]:
    return [job.name for job in page.jobs]


async def test_a_job_is_created_scaled_suspended_resumed_and_deleted(
    site: ClusterBackend, team: Team, operator: OperatorProcess, simulated: SimulatedKubelet
) -> None:
    simulated.behave = until_told
    ref = JobRef(team.namespace, "one")
    tried = await site.create(rloo("one", reference={"replicas": 1}), dry_run=True)
    assert tried.job.spec.rollout.replicas == 2
    await refused(JobNotFound, site.get(ref), f"no job one in namespace {team.namespace}")
    created = await site.create(rloo("one", reference={"replicas": 1}))
    assert created.ref == ref
    await refused(JobExists, site.create(rloo("one", reference={"replicas": 1})), "there is a job one")
    running = await until_phase(site, "one", JobPhase.RUNNING)
    assert running.uid == created.uid
    await until_ready(site, "one", "driver")

    processes = await site.processes(ref)
    assert [process.name for process in processes] == [
        "driver",
        "trainer-0",
        "trainer-1",
        "rollout-0",
        "rollout-1",
        "reward-helpful-0",
        "reference-0",
        "prepare",
        "nats",
    ]
    states = {process.name: process.state for process in processes}
    assert states.pop("prepare") is ProcessState.FINISHED
    assert set(states.values()) == {ProcessState.READY}
    assert processes[0].where == "one-driver-0" and processes[0].started is not None

    scaled = await site.scale(ref, 3)
    assert scaled.resource["spec"]["rollout"]["replicas"] == 3
    await asyncio.to_thread(team.until, lambda: "one-rollout-2-0" in team.pods(), "the third rollout worker")
    await refused(JobInvalid, site.scale(ref, 0), "spec.rollout.replicas", "greater than or equal to 1")
    scaled = await site.scale(ref, 2, "reward-helpful")
    assert [reward["replicas"] for reward in scaled.resource["spec"]["rewards"]] == [2]
    scaled = await site.scale(ref, 2, "reference")
    assert scaled.resource["spec"]["reference"]["replicas"] == 2
    added = {"one-reward-helpful-1-0", "one-reference-1-0"}
    await asyncio.to_thread(team.until, lambda: added <= set(team.pods()), "the second scorers")
    await refused(JobInvalid, site.scale(ref, 0, "reward-helpful"), "replicas", "greater than or equal to 1")
    await refused(
        NotPossible, site.scale(ref, 2, "teacher"), "no workers 'teacher'", "it has rollout, reward"
    )

    await site.suspend(ref, True)
    await until_phase(site, "one", JobPhase.SUSPENDED)
    assert not await site.processes(ref)
    await site.suspend(ref, False)
    await until_phase(site, "one", JobPhase.RUNNING)

    events = await site.events(ref)
    assert [event.time for event in events] == sorted(event.time for event in events)
    assert any(event.message.startswith("trainer-1: ") and event.reason == "Scheduled" for event in events)
    assert {"Running", "Suspended"} <= {event.reason for event in events}

    await refused(NotPossible, site.result(ref), "no result yet", "Running")
    await site.delete(ref)
    await refused(JobNotFound, site.get(ref))


async def test_a_job_that_has_ended_says_so_and_stays_so(
    site: ClusterBackend, team: Team, operator: OperatorProcess, simulated: SimulatedKubelet
) -> None:
    simulated.behave = until_told
    await site.create(sft("one"))
    await until_ready(site, "one", "driver")
    simulated.exit(team.namespace, "one-driver-0", Exit(78, "the data has no column prompt"))
    failed = await until_phase(site, "one", JobPhase.FAILED)
    assert "no column prompt" in (failed.status.message or "")
    [driver] = [process for process in await site.processes(failed.ref) if process.role == "driver"]
    assert driver.state is ProcessState.FAILED
    assert "the data has no column prompt" in driver.message
    await refused(Conflict, site.suspend(failed.ref, True), "has failed", "kubealign retry one")
    await refused(Conflict, site.scale(failed.ref, 2), "has failed")
    await refused(NotPossible, site.result(failed.ref), "it failed", "no column prompt")

    retried = await site.retry(failed.ref)
    assert retried.uid == failed.uid
    running = await until_phase(site, "one", JobPhase.RUNNING)
    assert (running.status.restarts, running.uid) == (0, failed.uid)
    await refused(Conflict, site.retry(failed.ref), "is Running", "only a job that has failed")

    simulated.behave = finishing
    await site.create(sft("two"))
    done = await until_phase(site, "two", JobPhase.SUCCEEDED)
    assert done.status.result is not None and done.status.result.claim_name == "runs"


async def test_a_watch_goes_on_through_a_restart_of_the_api_server_and_ends_with_the_job(
    site: ClusterBackend, control_plane: ControlPlane
) -> None:
    ref = (await site.create(sft("one"))).ref
    seen: list[JobRecord] = []
    first, changed = asyncio.Event(), asyncio.Event()

    async def follow() -> None:
        async for record in site.watch(ref):
            seen.append(record)
            first.set()
            if record.labels:
                changed.set()

    following = asyncio.create_task(follow())
    await asyncio.wait_for(first.wait(), _SECONDS)
    control_plane.kill_apiserver()
    await refused(Unavailable, site.get(ref), "did not answer", "get alignmentjobs one")
    # Not in a worker thread: the server ends with the thread that starts it.
    control_plane.start_apiserver()
    await site.patch(ref, {"metadata": {"labels": {"touched": "yes"}}})
    await asyncio.wait_for(changed.wait(), _SECONDS)
    await site.delete(ref)
    await asyncio.wait_for(following, _SECONDS)
    versions = [record.metadata["resourceVersion"] for record in seen]
    assert len(versions) == len(set(versions)) == 2, "each change is reported exactly once"


async def test_jobs_are_listed_by_namespace_label_search_phase_and_page(site: ClusterBackend) -> None:
    for number in range(5):
        job = sft(f"job-{number}") if number % 2 else rloo(f"job-{number}")
        job["metadata"]["labels"] = {"team": "blue" if number < 3 else "red"}
        await site.create(job)

    def query(**changes: Any) -> ListQuery:
        return ListQuery(**{"namespace": site.namespace, "sort": "name"} | changes)

    assert names(await site.list(query(label_selector="team=blue"))) == ["job-0", "job-1", "job-2"]
    assert names(await site.list(query(label_selector="team notin (blue)"))) == ["job-3", "job-4"]
    assert names(await site.list(query(search="B-3"))) == ["job-3"]
    assert names(await site.list(query(algorithms=frozenset({"sft"})))) == ["job-1", "job-3"]
    assert names(await site.list(query(phases=frozenset({"Pending"}), sort="-name"))) == [
        f"job-{number}" for number in (4, 3, 2, 1, 0)
    ]
    assert names(await site.list(query(phases=frozenset({"Running"})))) == []
    for sort, all_of_them in (("name", [0, 1, 2, 3, 4]), ("-name", [4, 3, 2, 1, 0])):
        listed_names: list[str] = []
        page = JobPage([])
        while not listed_names or page.next:
            page = await site.list(query(sort=sort, limit=2, after=page.next))
            listed_names += names(page)
        assert listed_names == [f"job-{number}" for number in all_of_them]
    first = await site.list(query(limit=2))
    assert first.total == 5 and first.resource_version
    everywhere = await site.list(ListQuery(sort="name", label_selector="team=red", search="job-4"))
    assert [job.namespace for job in everywhere.jobs] == [site.namespace]
    await refused(JobInvalid, site.list(query(sort="age")), "sort", "created")
    await refused(JobInvalid, site.list(query(label_selector="a=,=")), "labelSelector", "a=,=")
    await refused(JobInvalid, site.list(query(after="nonsense")), "first page")


async def test_errors_of_a_job_are_reported_by_field(site: ClusterBackend) -> None:
    error = await refused(JobInvalid, site.create(sft("one", maxSteps=0, sed=1)), "at least 1")
    assert isinstance(error, JobInvalid)
    assert {field_error.path for field_error in error.errors} == {"spec.maxSteps", "spec.sed"}

    created = await site.create(sft("one"))
    error = await refused(JobInvalid, site.patch(created.ref, {"spec": {"seed": 4}}), "cannot be changed")
    assert isinstance(error, JobInvalid)
    assert [field_error.path for field_error in error.errors] == ["spec.seed"]
    error = await refused(JobInvalid, site.patch(created.ref, {"spec": {"sed": 4}}), "no such field")
    assert isinstance(error, JobInvalid)
    assert [field_error.path for field_error in error.errors] == ["spec.sed"]
    await refused(NotPossible, site.scale(created.ref, 2), "no rollout workers")

    elsewhere = copy.deepcopy(sft("two"))
    elsewhere["metadata"]["namespace"] = "nowhere"
    error = await refused(JobInvalid, site.create(elsewhere), "no such namespace")
    assert isinstance(error, JobInvalid)
    assert [field_error.path for field_error in error.errors] == ["metadata.namespace"]

    # A resource returned by the API server can be submitted again under another name.
    again = {**created.resource, "metadata": {**created.resource["metadata"], "name": "again"}}
    assert (await site.create(again)).uid != created.uid


async def test_rights_are_the_callers(
    site: ClusterBackend, control_plane: ControlPlane, api: KubernetesApi
) -> None:
    kubectl = control_plane.kubectl
    for account in ("reader", "stranger"):
        kubectl("create", "serviceaccount", account, "-n", site.namespace)
    read = ("--verb=get,list,watch", "--resource=alignmentjobs.kubealign.dev")
    kubectl("create", "role", "reads-jobs", *read, "-n", site.namespace)
    who = f"--serviceaccount={site.namespace}:reader"
    kubectl("create", "rolebinding", "reads-jobs", "--role=reads-jobs", who, "-n", site.namespace)

    def as_(token: str) -> ClusterBackend:
        return ClusterBackend(api.with_token(token), open_telemetry(api), site.namespace)

    tokens = {
        account: kubectl("create", "token", account, "-n", site.namespace).strip()
        for account in ("reader", "stranger")
    }
    created = await site.create(rloo("one"))
    reader, stranger = as_(tokens["reader"]), as_(tokens["stranger"])
    assert (await reader.get(created.ref)).uid == created.uid
    assert names(await reader.list(ListQuery(site.namespace))) == ["one"]
    await refused(
        Forbidden, reader.suspend(created.ref, True), f"patch alignmentjobs one in namespace {site.namespace}"
    )
    await refused(Forbidden, reader.scale(created.ref, 3), "patch alignmentjobs/scale one")
    await refused(Forbidden, reader.delete(created.ref), "delete alignmentjobs one")
    await refused(Forbidden, reader.processes(created.ref), "list pods")
    await refused(Forbidden, reader.list(ListQuery(sort="name")), "in every namespace")
    await refused(Forbidden, stranger.get(created.ref), "get alignmentjobs one", "`edit`")
    await refused(Forbidden, stranger.create(sft("two")), "create alignmentjobs")
    await refused(Unauthenticated, as_("nonsense").get(created.ref), "missing, wrong or expired")
    assert await api.with_token("abc").bearer_token() == "abc"
    assert await api.bearer_token() == control_plane.token


async def test_a_callers_token_is_sent_without_the_client_certificate(
    control_plane: ControlPlane, site: ClusterBackend, tmp_path: Path
) -> None:
    """A client certificate has precedence over a token, so it must not accompany another user's token."""
    pair = control_plane.authority.client("h2-admin", "boss", "system:masters")
    config = yaml.safe_load(control_plane.kubeconfig.read_text())
    config["users"][0]["user"] = {"client-certificate": str(pair.certificate), "client-key": str(pair.key)}
    file = tmp_path / "certificate.kubeconfig"
    file.write_text(yaml.safe_dump(config))
    created = await site.create(sft("one"))
    async with await connect(file) as boss:
        assert await boss.bearer_token() is None
        assert (
            await ClusterBackend(boss, open_telemetry(boss), site.namespace).get(created.ref)
        ).uid == created.uid
        nobody = ClusterBackend(boss.with_token("nonsense"), open_telemetry(boss), site.namespace)
        await refused(Unauthenticated, nobody.get(created.ref))
        # The dashboard cannot authenticate a client certificate either.
        own = ClusterBackend(boss, open_telemetry(boss), site.namespace)
        await refused(Unauthenticated, own.metrics(created.ref), "client certificate", "KUBEALIGN_TOKEN")


async def test_metrics_need_a_dashboard_and_nothing_else_does(site: ClusterBackend) -> None:
    created = await site.create(sft("one"))
    await refused(
        Unavailable, site.metrics(created.ref), "no dashboard in this cluster", "dashboard.enabled=true"
    )
    await refused(Unavailable, site.samples(created.ref), "no dashboard in this cluster")
    assert await site.processes(created.ref) == []
    assert [line async for line in site.logs(created.ref)] == []


async def test_logs_of_missing_processes_are_refused_and_followers_wait(site: ClusterBackend) -> None:
    """No operator runs the job: a follower waits for its pods, and ends when the job is deleted."""
    created = await site.create(sft("one"))
    with pytest.raises(NotPossible, match="no process trainer-7: it has none yet"):
        await anext(site.logs(created.ref, process="trainer-7"))
    with pytest.raises(JobNotFound):
        await anext(site.logs(JobRef(site.namespace, "two"), follow=True))

    async def follow() -> list[str]:
        return [line.text async for line in site.logs(created.ref, role="driver", follow=True)]

    following = asyncio.create_task(follow())
    done, _ = await asyncio.wait([following], timeout=1.0)
    assert not done
    await site.delete(created.ref)
    assert await asyncio.wait_for(following, _SECONDS) == []
