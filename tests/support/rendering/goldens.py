"""Golden files with the rendered manifests of jobs. `make goldens` updates them. Review the difference: pods
that a running job gets after an update differ from its existing pods."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import yaml

from kubealign_operator.kube_views.observed_job import DependencyView, VolumePath
from kubealign_operator.manifests.context import Platform
from kubealign_operator.planner.plan import CredentialsRequest
from support.rendering.cluster import Cluster
from support.rendering.jobs import Json, ppo, scorer_replicas, sft, two_ranks, with_trainer

FOLDER = Path(__file__).parents[2] / "unit" / "operator" / "planner" / "goldens"

_ADMIN = Platform(
    image="registry.example/kubealign@sha256:1",
    redis_host="redis.example",
    redis_port=6380,
    redis_tls=True,
    pod_template={
        "spec": {
            "tolerations": [{"key": "dedicated", "operator": "Exists"}],
            "containers": [{"name": "main", "env": [{"name": "HF_HUB_OFFLINE", "value": "1"}]}],
        }
    },
    default_resources={"rollout": {"requests": {"cpu": "2", "memory": "8Gi"}, "limits": {"memory": "8Gi"}}},
)
_SFT = DependencyView(
    "sft",
    "11111111-aaaa",
    phase="Succeeded",
    result=VolumePath("runs", "team/sft-11111111/result"),
)

CLUSTERS: dict[str, Callable[[], Cluster]] = {
    "sft": lambda: Cluster(sft()),
    "two-ranks": lambda: Cluster(two_ranks()),
    "scorer-replicas": lambda: Cluster(scorer_replicas()),
    "with-trainer": lambda: Cluster(with_trainer()),
    "ppo": lambda: Cluster(ppo(), platform=_ADMIN, dependencies={"sft": _SFT}),
}


def picture(cluster: Cluster) -> str:
    """Return all manifests created until the job runs, as YAML."""
    created: list[Json] = []
    for _ in range(4):
        rendered = cluster.step()
        if rendered.credentials is not None:
            created.append(_need(rendered.credentials))
        created += rendered.create
        cluster.serve()
        if "prepare" in cluster.short_names():
            cluster.end(cluster.name("prepare"), 0)
    assert cluster.phase == "Running"
    return yaml.dump_all(created, Dumper=_Plain, sort_keys=False, width=110)


class _Plain(yaml.SafeDumper):
    """Writes no anchors and aliases."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _need(need: CredentialsRequest) -> Json:
    """Return the Secret without its contents."""
    return {
        "kind": "Secret",
        "metadata": need.metadata,
        "roles": [str(role) for role in need.roles],
        "hosts": list(need.hosts),
        "days": need.lifetime / timedelta(days=1),
    }


def main() -> None:
    """Write all golden files."""
    FOLDER.mkdir(exist_ok=True)
    for name, cluster in CLUSTERS.items():
        (FOLDER / f"{name}.yaml").write_text(picture(cluster()))


if __name__ == "__main__":
    main()
