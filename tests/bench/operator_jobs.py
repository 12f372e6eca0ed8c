"""Measures how soon the operator creates the pods of a thousand jobs and reports their status, and at what
cost.

Real etcd, API server, controllers and scheduler; the kubelet is simulated. Everything runs on this machine,
so the processor time of the other programs is measured too.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import psutil
from tests.bench.operator_load import Load, Seen, Server, measure
from tests.cluster.support.cluster_jobs import make_claims, rloo, sft, until_told
from tests.cluster.support.control_plane import ControlPlane
from tests.cluster.support.door import define
from tests.cluster.support.operator_process import OperatorProcess

_NAMESPACE = "bench"
_FIRST = ("nats", "prepare")
_MIB = 1 << 20
_KINDS = {"sft": sft, "rloo": rloo}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--kind", choices=sorted(_KINDS), default="sft", help="4 or 9 pods a job")
    parser.add_argument("--per-second", type=float, help="default: one after another without a pause")
    parser.add_argument("--in-flight", type=int, default=1, help="concurrently applied jobs; kubectl: 1")
    parser.add_argument("--seconds", type=float, default=1200, help="give up after this time")
    parser.add_argument("--workers", type=int, default=8, help="the operator's")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="kubealign-bench-") as folder,
        ControlPlane(Path(folder)) as plane,
        plane.simulated_kubelet(behave=until_told),
    ):
        plane.kubectl.create_namespace(_NAMESPACE)
        define(plane)
        make_claims(plane, _NAMESPACE)
        where = (Path(folder), plane.kubeconfig, _NAMESPACE)
        lease = {
            "namespace": _NAMESPACE,
            "leaseSeconds": 60,
            "renewDeadlineSeconds": 40,
            "retrySeconds": 5,
        }
        with OperatorProcess(
            *where, workers=arguments.workers, leaderElection=lease, requestSeconds=60
        ) as op:
            _run(plane, op, arguments)


def _run(plane: ControlPlane, op: OperatorProcess, arguments: argparse.Namespace) -> None:
    make = _KINDS[arguments.kind]
    jobs = [make(f"job-{number:04d}") for number in range(arguments.jobs)]
    server = Server(plane.url, plane.authority.certificate.read_text(), plane.token, _NAMESPACE)
    load = Load(jobs, arguments.per_second, _FIRST, arguments.seconds, arguments.in_flight)
    programs = {
        "operator": psutil.Process(op.daemon.pid),
        "kube-apiserver": psutil.Process(plane.apiserver.pid),
        "etcd": psutil.Process(plane.etcd.pid),
        "controller-manager": psutil.Process(plane.controller_manager.pid),
        "scheduler": psutil.Process(plane.scheduler.pid),
        "simulated kubelet": psutil.Process(),
    }
    idle = programs["operator"].memory_info().rss / _MIB
    before = _cpu(programs)
    began = time.monotonic()
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as child:
        seen = child.submit(measure, server, load).result()
    wall = time.monotonic() - began
    used = {name: seconds - before[name] for name, seconds in _cpu(programs).items()}
    print(f"\n{arguments.jobs} {arguments.kind} jobs, {_rate(seen)}; {wall:.0f} s until all were ready\n")
    _print_times(seen)
    _print_costs(op, arguments.jobs, idle, used, wall)


def _rate(seen: Seen) -> str:
    seconds = max(seen.applied.values()) - min(seen.asked.values())
    return f"applied in {seconds:.1f} s ({len(seen.applied) / seconds:.0f} a second)"


def _print_times(seen: Seen) -> None:
    print("| seconds | p50 | p90 | p99 | max |\n| --- | --- | --- | --- | --- |")
    for what, begin, end in (
        ("job applied -> its first pods are there", seen.applied, seen.created),
        ("driver's pod ready -> in the job's status", seen.driver_ready, seen.reported_ready),
        ("job applied -> Running", seen.applied, seen.running),
    ):
        taken = sorted(max(0.0, end[name] - begin[name]) for name in begin)
        cells = [_quantile(taken, share) for share in (0.5, 0.9, 0.99, 1.0)]
        print(f"| {what} | " + " | ".join(f"{cell:.2f}" for cell in cells) + " |")


def _print_costs(op: OperatorProcess, jobs: int, idle: float, used: Mapping[str, float], wall: float) -> None:
    peak = _peak_mib(op.daemon.pid)
    print(f"\noperator: {idle:.0f} MiB idle, {peak:.0f} MiB at its peak")
    print("processor seconds: " + ", ".join(f"{name} {seconds:.1f}" for name, seconds in used.items()))
    print(f"all of them: {sum(used.values()) / wall:.2f} of {psutil.cpu_count()} cores")
    calls = {
        f"{verb} {resource}": op.metric("kubealign_operator_api_calls_total", verb=verb, resource=resource)
        for verb in ("create", "patch", "delete", "get")
        for resource in (
            "alignmentjobs",
            "pods",
            "secrets",
            "configmaps",
            "services",
            "networkpolicies",
            "events",
        )
    }
    breakdown = ", ".join(f"{name} {count / jobs:.2f}" for name, count in calls.items() if count)
    print(f"API calls a job: {sum(calls.values()) / jobs:.1f} ({breakdown})")
    looks = op.metric("kubealign_operator_reconcile_seconds_count")
    seconds = op.metric("kubealign_operator_reconcile_seconds_sum")
    print(f"looks a job: {looks / jobs:.1f}, {1000 * seconds / max(1, looks):.1f} ms each with their calls")
    for verb in ("create", "patch"):
        count = op.metric("kubealign_operator_api_seconds_count", verb=verb)
        total = op.metric("kubealign_operator_api_seconds_sum", verb=verb)
        print(f"  {verb}: {1000 * total / max(1, count):.1f} ms a call")


def _quantile(ordered: Sequence[float], share: float) -> float:
    if len(ordered) < 2 or share >= 1.0:
        return ordered[-1]
    return statistics.quantiles(ordered, n=100, method="inclusive")[round(share * 100) - 1]


def _cpu(programs: Mapping[str, psutil.Process]) -> dict[str, float]:
    times = {name: process.cpu_times() for name, process in programs.items()}
    return {name: cpu.user + cpu.system for name, cpu in times.items()}


def _peak_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0


if __name__ == "__main__":
    main()
