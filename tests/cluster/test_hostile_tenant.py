"""Properties of the operator under a hostile tenant: it goes on, and the jobs of other tenants run."""

import itertools
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from redis import Redis
from redis.exceptions import ResponseError

from cluster.support.cluster_jobs import finishing, make_claims, rloo, sft
from cluster.support.kubectl import KubectlFailed
from cluster.support.operator_process import OperatorProcess
from cluster.support.redis_process import RedisProcess
from cluster.support.simulated_kubelet import SimulatedKubelet
from cluster.support.team import Team
from kubealign_operator import names
from support.deep_documents import with_deep_affinity

_LAG = "kubealign_operator_loop_lag_seconds"
_MAX_LAG = "1.0"
_SUCCEEDED_SECONDS = 240.0
_numbers = itertools.count(1)

_BYTES = st.binary(max_size=64) | st.sampled_from(
    [b"\xff", b"inf", b"1e300", b"[" * 100_000, b"x" * 2_000_000, b'{"reward/mean": NaN}']
)
_KEYS = st.sampled_from([b"status", b"metrics", b"samples", b"heartbeat:driver"]) | st.binary(max_size=16)
_FIELDS = st.dictionaries(
    st.sampled_from([b"step", b"max_steps", b"json", b"waiting_for"]) | st.binary(max_size=8),
    _BYTES,
    min_size=1,
    max_size=4,
)
_WRITES = st.lists(
    st.tuples(
        _KEYS, st.tuples(st.sampled_from(["SET", "RPUSH"]), _BYTES) | st.tuples(st.just("HSET"), _FIELDS)
    )
    | st.tuples(_KEYS, st.tuples(st.just("XADD"), _FIELDS)),
    max_size=8,
)
# The API server admits every text but lone surrogates in annotations.
_TEXT = st.text(st.characters(codec="utf-8"), max_size=40)
_ANNOTATIONS = st.dictionaries(
    st.from_regex(r"[a-z]{1,10}\.example/[a-z]{1,10}", fullmatch=True),
    _TEXT | st.just("x" * 200_000),
    max_size=1,
) | st.dictionaries(st.just("kubealign.dev/retry"), _TEXT, max_size=1)


@st.composite
def _jobs(draw: st.DrawFn) -> str:
    """Return the text of a job that may be deep, long, large, or full of unusual texts."""
    replicas = draw(st.sampled_from([1, 3, 1024]))
    engine = {"torch": {"tensorParallel": draw(st.sampled_from([1, 64]))}}
    job = rloo(f"evil-{next(_numbers)}", rollout={"replicas": replicas, "engine": engine})
    if replicas == 3:
        job["spec"]["rollout"].pop("engine")
    job["metadata"]["annotations"] = draw(_ANNOTATIONS)
    free_form = {"nodeAffinity": draw(st.dictionaries(_TEXT, _TEXT | st.just("x" * 200_000), max_size=3))}
    job["spec"]["podTemplate"] = {"spec": {"affinity": free_form}}
    depth = draw(st.sampled_from([0, 90, 2_000, 9_000]))
    return with_deep_affinity(job, depth) if depth else json.dumps(job)


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisProcess]:
    with RedisProcess(tmp_path) as running:
        yield running


def _write(client: Redis, prefix: bytes, writes: list[Any]) -> None:
    for key, (command, value) in writes:
        arguments = [prefix + key, *(["*"] if command == "XADD" else [])]
        arguments += [value] if isinstance(value, bytes) else itertools.chain(*value.items())
        # A key of another type refuses the command.
        with suppress(ResponseError):
            client.execute_command(command, *arguments)


def _foreign_pod(job: str, process: str) -> dict[str, Any]:
    """Return a pod with the labels of a job's process that no job controls."""
    labels = {
        names.MANAGED_BY: names.KUBEALIGN,
        names.APP: names.KUBEALIGN,
        names.JOB_LABEL: job,
        names.UID_LABEL: "none",
        names.PROCESS_LABEL: process,
        names.ROLE_LABEL: process.partition("-")[0],
    }
    containers = [{"name": "main", "image": "none"}]
    metadata = {"name": f"foreign-{next(_numbers)}", "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": containers}}


def _check(examples: int, team: Team, other: Team, operator: OperatorProcess, redis: RedisProcess) -> None:
    pid = operator.daemon.pid
    client = Redis(port=redis.port, username="admin", password=redis.password)
    team.apply(sft("victim"))

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        # The first failure counts: smaller examples would take a minute each.
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(_WRITES, _jobs(), st.sampled_from(["driver", "trainer-0", "nats", "rollout-1025", "none"]))
    def holds(writes: list[Any], job: str, process: str) -> None:
        _write(client, f"kubealign:{team.namespace}:victim:".encode(), writes)
        # Some objects are too large or too deep for the API server itself.
        for text in (job, json.dumps(_foreign_pod("victim", process))):
            with suppress(KubectlFailed):
                team.control_plane.kubectl(
                    "create", "--validate=ignore", "-f", "-", "-n", team.namespace, stdin=text
                )
        good = f"good-{next(_numbers)}"
        other.apply(sft(good))
        # API server and scheduler of one small machine are busy with a thousand pods of a hostile job.
        other.until(
            lambda: other.phases().get(good) == "Succeeded", f"{good} to be Succeeded", _SUCCEEDED_SECONDS
        )
        assert (operator.daemon.alive, operator.daemon.pid) == (True, pid)
        measured = operator.metric(f"{_LAG}_count")
        assert measured > 0
        # Another measurement may follow the count.
        assert operator.metric(f"{_LAG}_bucket", le=_MAX_LAG) >= measured, "the event loop was late"
        assert operator.metric("kubealign_operator_reconcile_errors_total", reason="Fault") == 0

    holds()


@pytest.mark.parametrize(
    "examples",
    [
        pytest.param(4, marks=pytest.mark.timeout(1200)),
        pytest.param(60, marks=[pytest.mark.full, pytest.mark.timeout(3600)]),
    ],
)
def test_other_tenants_run_while_one_writes_anything(
    team: Team,
    namespace_of_another_tenant: str,
    simulated: SimulatedKubelet,
    redis: RedisProcess,
    tmp_path: Path,
    examples: int,
) -> None:
    simulated.behave = finishing
    make_claims(team.control_plane, namespace_of_another_tenant)
    other = Team(team.control_plane, namespace_of_another_tenant)
    with OperatorProcess(
        tmp_path,
        team.control_plane.kubeconfig,
        team.namespace,
        namespaces=[team.namespace, other.namespace],
        redis=redis.config,
        progressSeconds=0.2,
    ) as operator:
        _check(examples, team, other, operator, redis)
    team.control_plane.kubectl("delete", "aj", "--all", "-n", team.namespace, "--wait=false")
