"""A simulated cluster around one job: executes the plans and plays the nodes."""

import json
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from kubealign.kube.merge_patch import apply_merge_patch
from kubealign_operator import names
from kubealign_operator.kube_views.kueue_view import KueueView, PodPlacement, workload_view
from kubealign_operator.kube_views.lenient_json import get_path
from kubealign_operator.kube_views.observed_job import DependencyView, DriverProgress, ObservedState
from kubealign_operator.kube_views.pod_view import pod_view
from kubealign_operator.manifests.context import Platform
from kubealign_operator.planner.plan import (
    PlannedEvent,
    ReconcilePlan,
    WorkloadAdoption,
    WorkloadChange,
    WorkloadDeletion,
)
from kubealign_operator.planner.planner import plan_reconcile
from support.rendering.jobs import PLATFORM, Json

START = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
_KILLED = 137
_STOPPED = 143


def written(moment: datetime) -> str:
    """Format a time as Kubernetes does."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _copy(document: Json) -> Json:
    """Return a copy of a JSON document. copy.deepcopy would take most of the time of the property tests."""
    copied: Json = json.loads(json.dumps(document))
    return copied


@dataclass
class Cluster:
    """`step` plans and executes; the other methods simulate the cluster."""

    job: Json
    now: datetime = START
    pods: dict[str, Json] = field(default_factory=dict)
    objects: set[tuple[str, str]] = field(default_factory=set)
    #: Created objects other than pods, Secrets and Workloads, by kind and name.
    manifests: dict[tuple[str, str], Json] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)
    dependencies: dict[str, DependencyView | None] = field(default_factory=dict)
    circle: tuple[str, ...] = ()
    #: Reason why parts of the job are missing.
    unreadable: str = ""
    progress: DriverProgress | None = None
    platform: Platform = PLATFORM
    #: Kueue's Workloads by name.
    workloads: dict[str, Json] = field(default_factory=dict)
    flavors: dict[str, PodPlacement] = field(default_factory=dict)
    workload_priorities: dict[str, int] = field(default_factory=dict)
    pod_priorities: dict[str, int] = field(default_factory=dict)
    #: Names of the created pods, in order.
    made: list[str] = field(default_factory=list)
    events: list[PlannedEvent] = field(default_factory=list)
    job_deleted: bool = False
    writes: int = 0
    _uids: int = 0

    # Actions of the operator.

    def observed(self) -> ObservedState:
        return ObservedState(
            job=_copy(self.job),
            unreadable=self.unreadable,
            pods=tuple(pod_view(pod) for pod in self.pods.values()),
            objects=frozenset(self.objects),
            create_errors=dict(self.refusals),
            dependencies=dict(self.dependencies),
            dependency_cycle=self.circle,
            progress=self.progress,
            kueue=KueueView(
                workloads=tuple(workload_view(workload) for workload in self.workloads.values()),
                flavors=dict(self.flavors),
                workload_priorities=dict(self.workload_priorities),
                pod_priorities=dict(self.pod_priorities),
            ),
        )

    def rendered(self) -> ReconcilePlan:
        return plan_reconcile(self.observed(), self.now, self.platform)

    def step(self) -> ReconcilePlan:
        """Reconcile once."""
        rendered = self.rendered()
        if self.job.get("status") != rendered.status:
            self.writes += 1
        self.job["status"] = _copy(rendered.status)
        for deletion in rendered.delete:
            self._delete(deletion.name, deletion.uid, deletion.grace_seconds)
        for stop in rendered.stop:
            assert self.pods[stop.name]["metadata"]["uid"] == stop.uid
            self.pods[stop.name]["spec"]["activeDeadlineSeconds"] = 1
        for change in rendered.workload_changes:
            self._change_workload(change)
        if rendered.credentials is not None:
            self.objects.add(("Secret", rendered.credentials.name))
        for manifest in rendered.create:
            self._create(manifest)
        self.events += rendered.events
        self.job_deleted = self.job_deleted or rendered.delete_job
        return rendered

    def settle(self, looks: int = 12) -> ReconcilePlan:
        """Reconcile until nothing changes."""
        for _ in range(looks):
            before = self._state()
            rendered = self.step()
            if before == self._state():
                return rendered
        raise AssertionError(f"it does not settle: {self.job['status']}")

    def _state(self) -> str:
        return json.dumps([self.job, self.pods, self.workloads, sorted(self.objects)], sort_keys=True)

    # Events in the cluster.

    def pass_time(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def schedule(self, name: str, node: str = "node-1") -> None:
        pod = self.pods[name]
        pod["spec"]["nodeName"] = node
        self._condition(pod, "PodScheduled", "True")
        pod["status"]["containerStatuses"] = [
            {"name": names.MAIN_CONTAINER, "state": {"waiting": {"reason": "ContainerCreating"}}}
        ]

    def run(self, name: str, ready: bool = True) -> None:
        """Run the pod's process, ready if `ready`."""
        self.schedule(name)
        pod = self.pods[name]
        pod["status"]["phase"] = "Running"
        state = {"running": {"startedAt": written(self.now)}}
        pod["status"]["containerStatuses"] = [{"name": names.MAIN_CONTAINER, "state": state}]
        self._condition(pod, "Ready", "True" if ready else "False")

    def end(self, name: str, code: int, message: str = "", reason: str = "") -> None:
        """Terminate the pod's process."""
        pod = self.pods[name]
        pod["status"]["phase"] = "Succeeded" if code == 0 else "Failed"
        value = get_path(pod["status"].get("containerStatuses", [{}])[0], "state", "running", "startedAt")
        terminated = {
            "exitCode": code,
            "reason": reason or ("Completed" if code == 0 else "Error"),
            "message": message,
            "startedAt": value or written(self.now),
            "finishedAt": written(self.now),
        }
        pod["status"]["containerStatuses"] = [
            {"name": names.MAIN_CONTAINER, "state": {"terminated": terminated}}
        ]
        self._condition(pod, "Ready", "False")

    def wait(self, name: str, reason: str, message: str = "") -> None:
        """Keep the pod's container from starting."""
        self.schedule(name)
        state = {"waiting": {"reason": reason, "message": message}}
        self.pods[name]["status"]["containerStatuses"] = [{"name": names.MAIN_CONTAINER, "state": state}]

    def admit(self, name: str, flavor: str = "default", topology: Json | None = None, **counts: int) -> None:
        """Reserve the quota of a Workload.

        Args:
            topology: topologyAssignment of each pod set; None: the flavor has no topology.
            counts: Pod sets that are admitted with fewer pods.
        """
        workload = self.workloads[name]
        assert "admission" not in workload["status"], f"{name} has a reservation already"
        workload["status"]["admission"] = {
            "clusterQueue": "gpus",
            "podSetAssignments": [
                {
                    "name": pod_set["name"],
                    "count": counts.get(pod_set["name"], pod_set["count"]),
                    "flavors": {"cpu": flavor, "memory": flavor},
                    **({} if topology is None else {"topologyAssignment": topology}),
                }
                for pod_set in workload["spec"]["podSets"]
            ],
        }
        self.flavors.setdefault(flavor, PodPlacement())
        self._workload_conditions(name, QuotaReserved="True", Admitted="True", Evicted="False")

    def evict(self, name: str, reason: str = "Preempted", message: str = "preempted by another job") -> None:
        """Ask the owner of a Workload to return its reservation."""
        self._workload_conditions(name, reason, message, Evicted="True")

    def unschedulable(self, name: str, message: str, reason: str = "Unschedulable") -> None:
        self._condition(self.pods[name], "PodScheduled", "False", reason, message)

    def delete(self, name: str) -> None:
        """Delete the pod like `kubectl delete pod`."""
        self._delete(name, self.pods[name]["metadata"]["uid"], None)

    def vanish(self, name: str) -> None:
        """Remove the pod between two reconciles."""
        del self.pods[name]

    def remove_finalizers(self) -> None:
        """Remove all finalizers: a pod that only they kept is gone with the last one."""
        for name, pod in list(self.pods.items()):
            metadata = pod["metadata"]
            if metadata.pop("finalizers", None) and metadata.get("deletionGracePeriodSeconds") == 0:
                del self.pods[name]

    def finish_leaving(self, code: int = _STOPPED) -> list[str]:
        """Let the nodes end the pods that are being deleted or stopped. Return the names of removed pods."""
        gone = [name for name, pod in self.pods.items() if "deletionTimestamp" in pod["metadata"]]
        for name in gone:
            if self.pods[name]["status"]["phase"] == "Running":
                # Only pods that finalizers keep still show it.
                self.end(name, code if code else _KILLED, reason="Error")
            self._finalize(name)
        for name, pod in self.pods.items():
            if pod["spec"].get("activeDeadlineSeconds") == 1 and pod["status"]["phase"] == "Running":
                self.end(name, code if code else _KILLED, reason="Error")
        return gone

    def short_names(self) -> list[str]:
        """Return the process names of the pods."""
        return [str(pod["metadata"]["labels"][names.PROCESS_LABEL]) for pod in self.pods.values()]

    def name(self, process: str) -> str:
        """Return the name of the newest pod of a process; without a pod, that of its first attempt."""
        attempts = {
            int(pod["metadata"]["labels"][names.ATTEMPT_LABEL]): name
            for name, pod in self.pods.items()
            if pod["metadata"]["labels"].get(names.PROCESS_LABEL) == process
        }
        return attempts[max(attempts)] if attempts else names.pod(self.job["metadata"]["name"], process, 0)

    def settings(self, process: str) -> Json:
        """Return the settings in the environment of a process's pod."""
        environment = self.pods[self.name(process)]["spec"]["containers"][0]["env"]
        pod_settings: Json = json.loads(next(e["value"] for e in environment if "SETTINGS" in e["name"]))
        return pod_settings

    # Lifecycle of a job.

    def start(self) -> None:
        """Start the job until everything runs."""
        self.settle()
        self.serve()
        if "prepare" in self.short_names():
            self.end(self.name("prepare"), 0)
        self.settle()
        self.serve()
        self.settle()
        self.serve()
        self.settle()

    def serve(self) -> None:
        """Make every waiting pod run and be ready."""
        for name, pod in self.pods.items():
            if pod["status"]["phase"] == "Pending" and "deletionTimestamp" not in pod["metadata"]:
                self.run(name)

    @property
    def phase(self) -> str:
        return str(self.job["status"]["phase"])

    @property
    def message(self) -> str:
        return str(self.job["status"].get("message", ""))

    def counted(self, role_name: str) -> tuple[int, int]:
        """Return (desired, ready) processes of a role in the status; workers, where one has several pods."""
        role = next(role for role in self.job["status"]["roles"] if role["name"] == role_name)
        return role["replicas"], role["ready"]

    def condition(self, kind: str) -> Json:
        return next(value for value in self.job["status"]["conditions"] if value["type"] == kind)

    def forget(self) -> "Cluster":
        """Return the same cluster as seen by a restarted operator."""
        return replace(self, pods=_copy(self.pods), job=_copy(self.job))

    def _create(self, manifest: Json) -> None:
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        if kind == "Workload":
            assert name not in self.workloads, f"Workload {name} is there already"
            self._uids += 1
            workload = _copy(manifest)
            workload["metadata"] |= {"uid": f"workload-{self._uids}", "resourceVersion": "1"}
            self.workloads[name] = {**workload, "status": {}}
            return
        if kind != "Pod":
            assert (kind, name) not in self.objects, f"{kind} {name} is there already"
            self.objects.add((kind, name))
            self.manifests[kind, name] = _copy(manifest)
            return
        assert name not in self.pods, f"pod {name} is there already"
        volumes = {volume["name"]: volume for volume in manifest["spec"]["volumes"]}
        for source in volumes["kubealign-credentials"]["projected"]["sources"]:
            assert ("Secret", source["secret"]["name"]) in self.objects
        if "kubealign-job" in volumes:
            assert ("ConfigMap", volumes["kubealign-job"]["configMap"]["name"]) in self.objects
        if name in self.refusals:
            return
        self._uids += 1
        pod = _copy(manifest)
        pod["metadata"] |= {"uid": f"pod-{self._uids}", "creationTimestamp": written(self.now)}
        pod["status"] = {"phase": "Pending"}
        self.pods[name] = pod
        self.made.append(name)

    def _workload_conditions(self, name: str, reason: str = "", message: str = "", **states: str) -> None:
        status = self.workloads[name]["status"]
        kept = [item for item in status.get("conditions", []) if item["type"] not in states]
        added = [
            {"type": kind, "status": state, "reason": reason or kind, "message": message}
            for kind, state in states.items()
        ]
        status["conditions"] = kept + added

    def _change_workload(self, change: WorkloadChange) -> None:
        workload = self.workloads[change.name]
        assert workload["metadata"]["uid"] == change.uid
        if isinstance(change, WorkloadDeletion):
            del self.workloads[change.name]
            return
        assert workload["metadata"]["resourceVersion"] == change.resource_version
        if isinstance(change, WorkloadAdoption):
            self.workloads[change.name] = apply_merge_patch(
                workload, {"metadata": {"ownerReferences": list(change.owner_references)}}
            )
            self.writes += 1
            return
        status = apply_merge_patch(workload["status"], change.status)
        reclaimable = {item["name"]: item["count"] for item in workload["status"].get("reclaimablePods", [])}
        if "admission" in workload["status"] and "admission" in status:
            # Kueue's webhook refuses to take quota back.
            for item in status.get("reclaimablePods", []):
                assert item["count"] >= reclaimable.get(item["name"], 0)
        if status != workload["status"]:
            self.writes += 1
        workload["status"] = status

    def _delete(self, name: str, uid: str, grace: int | None) -> None:
        pod = self.pods.get(name)
        if pod is None or pod["metadata"]["uid"] != uid:
            return
        unborn = "nodeName" not in pod["spec"]
        over = pod["status"]["phase"] in ("Succeeded", "Failed")
        if grace == 0 or unborn or over:
            self._finalize(name)
            return
        seconds = pod["spec"]["terminationGracePeriodSeconds"] if grace is None else grace
        pod["metadata"].setdefault("deletionGracePeriodSeconds", seconds)
        pod["metadata"].setdefault("deletionTimestamp", written(self.now + timedelta(seconds=seconds)))

    def _finalize(self, name: str) -> None:
        """Remove the pod, or keep it for its finalizers, as the API server does."""
        metadata = self.pods[name]["metadata"]
        if not metadata.get("finalizers"):
            del self.pods[name]
        elif metadata.get("deletionGracePeriodSeconds") != 0:
            metadata |= {"deletionTimestamp": written(self.now), "deletionGracePeriodSeconds": 0}

    def _condition(self, pod: Json, kind: str, status: str, reason: str = "", message: str = "") -> None:
        value: list[Any] = pod["status"].setdefault("conditions", [])
        value[:] = [item for item in value if item["type"] != kind]
        value.append({"type": kind, "status": status, "reason": reason, "message": message})
