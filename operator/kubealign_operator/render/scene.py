"""What rendering starts from: the job as it is written, and what lies around it."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from kubealign.spec.job import AlignmentJob
from kubealign.spec.status import Dependency
from kubealign_operator.render.claims import claims
from kubealign_operator.render.platform import Platform


@dataclass(frozen=True)
class Scene:
    """A job that can be made into objects. `job` has passed `parse`."""

    name: str
    namespace: str
    uid: str
    job: AlignmentJob
    platform: Platform
    #: The results that the job builds on.
    dependencies: tuple[Dependency, ...] = ()

    @cached_property
    def claims(self) -> Mapping[str, bool]:
        """The PersistentVolumeClaims that its processes see -> whether they write to them."""
        return claims(self.job, self.dependencies)
