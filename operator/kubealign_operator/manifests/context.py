"""The context from which the manifests of a job are built."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from kubealign.spec.job import AlignmentJob
from kubealign.spec.status import DependencyResult
from kubealign_operator.manifests.volume_claims import volume_claims
from kubealign_operator.manifests.platform import Platform


@dataclass(frozen=True)
class RenderContext:
    """A validated job together with everything its manifests depend on."""

    name: str
    namespace: str
    uid: str
    job: AlignmentJob
    platform: Platform
    #: Results of other jobs that the job builds on.
    dependencies: tuple[DependencyResult, ...] = ()

    @cached_property
    def claims(self) -> Mapping[str, bool]:
        """The PersistentVolumeClaims that the processes mount, mapped to True when they write to them."""
        return volume_claims(self.job, self.dependencies)
