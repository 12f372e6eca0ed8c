"""Accelerator sharing of a trained model: each command holds the accelerator lock while it runs."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from kubealign_services.residence.contract import Movable
from kubealign_services.residence.lease import Lease
from kubealign_services.training.contract import TrainingBackend
from kubealign_services.training.serving import Handler

#: Name of this holder of the lock.
TRAINING = "training"
#: Commands that touch no tensor and need no lock.
_FREE = frozenset({"Describe"})


class TrainingTenant:
    """The training backend as the accelerator lock offloads and reloads it. Before a backend is created it
    uses no
    accelerator memory.
    """

    def __init__(self) -> None:
        self._backend: Movable | None = None

    def leave(self) -> None:
        if self._backend is not None:
            self._backend.offload()

    def enter(self) -> None:
        if self._backend is not None:
            self._backend.reload()

    def making(self, create: Callable[[], TrainingBackend]) -> Callable[[], TrainingBackend]:
        """Wrap `create` so that this object owns the created backend. The wrapper raises ValueError for a
        backend that cannot be
        offloaded.
        """

        def make() -> TrainingBackend:
            # Drop the old backend before creating the new one: both do not fit into memory.
            self._backend = None
            backend = create()
            if not isinstance(backend, Movable):
                raise ValueError(
                    f"rollout.placement is WithTrainer, and {type(backend).__name__} cannot be "
                    "offloaded: set trainer.backend.torch, or rollout.placement to Own"
                )
            self._backend = backend
            return backend

        return make


class Accelerator(Protocol):
    """Access to the accelerator that a trainer computes on."""

    def making(self, create: Callable[[], TrainingBackend]) -> Callable[[], TrainingBackend]:
        """Wrap the function that creates the backend."""

    def leased(self, handlers: Mapping[str, Handler]) -> dict[str, Handler]:
        """Wrap the commands so that they wait for the accelerator."""

    def held(self, purpose: str) -> AbstractContextManager[None]:
        """Hold the accelerator within the block."""


class SharedAccelerator:
    """An accelerator that the trainer shares with another tenant."""

    def __init__(self, lease: Lease, tenant: TrainingTenant) -> None:
        self._lease = lease
        self._tenant = tenant

    def making(self, create: Callable[[], TrainingBackend]) -> Callable[[], TrainingBackend]:
        """See `TrainingOffloadable.wrap_create`."""
        return self._tenant.making(create)

    def leased(self, handlers: Mapping[str, Handler]) -> dict[str, Handler]:
        """Wrap the commands so that each holds the lock while it runs. The wrapped commands also raise
        LeaseTimeout.
        """
        return {
            name: command if name in _FREE else self._leased(name, command)
            for name, command in handlers.items()
        }

    def held(self, purpose: str) -> AbstractContextManager[None]:
        """Hold the lock within the block. Raises LeaseTimeout."""
        return self._lease.held(TRAINING, purpose)

    def _leased(self, name: str, command: Handler) -> Handler:
        def run(payload: bytes) -> bytes:
            with self.held(f"the command {name}"):
                return command(payload)

        return run


class OwnAccelerator:
    """An accelerator that the trainer does not share: nothing has to be locked."""

    def making(self, create: Callable[[], TrainingBackend]) -> Callable[[], TrainingBackend]:
        return create

    def leased(self, handlers: Mapping[str, Handler]) -> dict[str, Handler]:
        return dict(handlers)

    def held(self, purpose: str) -> AbstractContextManager[None]:
        return nullcontext()
