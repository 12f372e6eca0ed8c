"""Compares the memory of the client's SharedInformer with that of the operator's reflector and pod cache.

`python -m tests.bench.informer_memory`: real etcd and API server, pods of the operator's shape, no node.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psutil
from tests.cluster.support.cluster_jobs import sft
from tests.cluster.support.control_plane import ControlPlane

_NAMESPACE = "bench"
_SECONDS = 300.0
_MIB = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pods", type=int, default=6000)
    pods = parser.parse_args().pods
    with (
        tempfile.TemporaryDirectory(prefix="kubealign-bench-") as folder,
        ControlPlane(Path(folder)) as plane,
    ):
        plane.kubectl.create_namespace(_NAMESPACE)
        _child(_make_pods, str(plane.kubeconfig), pods)
        for name, measure in (("SharedInformer", _informer), ("reflector and cache", _reflector)):
            idle, full, seconds, cpu = _child(measure, str(plane.kubeconfig), pods)
            print(
                f"{name}: {pods} pods known after {seconds:.1f} s ({cpu:.1f} processor seconds), "
                f"{full - idle:.0f} MiB more than the {idle:.0f} before"
            )


def _child(work: Callable[..., Any], *arguments: Any) -> Any:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


def _make_pods(kubeconfig: str, pods: int) -> None:
    asyncio.run(_create_pods(kubeconfig, pods))


async def _create_pods(kubeconfig: str, pods: int) -> None:
    from kubealign.kube.resources import PODS
    from kubealign_operator.controller.config import OperatorConfig
    from kubealign_operator.controller.kube.connection import connect, operator_api
    from kubealign_operator.controller.metrics import OperatorMetrics
    from kubealign_operator.kube_views.observed_job import ObservedState
    from kubealign_operator.planner.planner import plan_reconcile

    job = sft("shape")
    job["metadata"] |= {"namespace": _NAMESPACE, "uid": "00000000-0000-0000-0000-000000000000"}
    config = _config(OperatorConfig, kubeconfig)
    plan = plan_reconcile(
        ObservedState(job),
        datetime.now(UTC),
        config.platform.platform(),
    )
    shape = next(item for item in plan.create if item["kind"] == "Pod")
    shape["metadata"].pop("ownerReferences")
    async with await connect(config) as connections, asyncio.TaskGroup() as tasks:
        api = operator_api(connections, OperatorMetrics(), 60)
        gate = asyncio.Semaphore(16)

        async def make(number: int) -> None:
            body = {**shape, "metadata": {**shape["metadata"], "name": f"pod-{number}"}}
            async with gate:
                await api.create(PODS.collection_path(_NAMESPACE), body, {"fieldManager": "bench"})

        for number in range(pods):
            tasks.create_task(make(number))


def _informer(kubeconfig: str, pods: int) -> tuple[float, float, float, float]:
    from kubernetes import client, config
    from kubernetes.informer import SharedInformer

    settings = client.Configuration()
    config.load_kube_config(kubeconfig, client_configuration=settings)
    core = client.CoreV1Api(client.ApiClient(settings))
    informer = SharedInformer(core.list_namespaced_pod, namespace=_NAMESPACE)
    known = informer.cache.list_keys
    began = _now()
    informer.start()
    return _until(lambda: len(known()) >= pods, began)


def _reflector(kubeconfig: str, pods: int) -> tuple[float, float, float, float]:
    return asyncio.run(_reflected(kubeconfig, pods))


async def _reflected(kubeconfig: str, pods: int) -> tuple[float, float, float, float]:
    from kubealign.kube.reflector import Reflector, ReflectorOptions, Scope
    from kubealign.kube.resources import PODS
    from kubealign_operator.controller.config import OperatorConfig
    from kubealign_operator.controller.kube.connection import connect, operator_api
    from kubealign_operator.controller.metrics import OperatorMetrics
    from kubealign_operator.controller.state.cache import PodStore

    async with await connect(_config(OperatorConfig, kubeconfig)) as connections:
        api = operator_api(connections, OperatorMetrics(), 60)
        store = PodStore(lambda job: None)
        reflector = Reflector(api, Scope(PODS, _NAMESPACE), store, ReflectorOptions(600))
        began = _now()
        running = asyncio.create_task(reflector.run())
        async with asyncio.timeout(_SECONDS):
            await reflector.synced.wait()
        measured = _since(began)
        running.cancel()
    return measured


def _config(model: Any, kubeconfig: str) -> Any:
    platform = {"image": "none", "redisHost": "none"}
    return model.model_validate({"kubeconfig": kubeconfig, "platform": platform})


def _now() -> tuple[float, float, float]:
    me = psutil.Process()
    times = me.cpu_times()
    return me.memory_info().rss / _MIB, time.monotonic(), times.user + times.system


def _since(began: tuple[float, float, float]) -> tuple[float, float, float, float]:
    idle, start, cpu = began
    full, end, used = _now()
    return idle, full, end - start, used - cpu


def _until(so: Callable[[], bool], began: tuple[float, float, float]) -> tuple[float, float, float, float]:
    end = time.monotonic() + _SECONDS
    while not so():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {_SECONDS:g} s for the informer to know every pod")
        time.sleep(0.1)
    return _since(began)


if __name__ == "__main__":
    main()
