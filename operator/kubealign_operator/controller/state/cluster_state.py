"""The operator's knowledge of the cluster, shared by reconciler and executor."""

from dataclasses import dataclass, field

from kubealign_operator.controller.platform_redis.progress import NoProgress, ProgressReader
from kubealign_operator.controller.state.cache import JobStore, PodStore
from kubealign_operator.controller.state.create_errors import CreateErrors
from kubealign_operator.controller.state.kueue_objects import KueueObjects
from kubealign_operator.controller.state.owned_objects import OwnedObjects
from kubealign_operator.controller.state.start_turns import StartTurns


@dataclass(frozen=True)
class ClusterState:
    """Caches of the cluster's objects, and what the operator records about them."""

    jobs: JobStore
    pods: PodStore
    owned_objects: OwnedObjects
    create_errors: CreateErrors
    progress: NoProgress | ProgressReader
    kueue: KueueObjects
    start_turns: StartTurns = field(default_factory=lambda: StartTurns(lambda key: None))
