"""Accelerator sharing of a trained model: each command holds the accelerator lock while it runs."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from kubealign_services.runtime.offload.accelerator_lock import AcceleratorLock
from kubealign_services.runtime.offload.contract import Offloadable
from kubealign_services.training.commands.server import Handler
from kubealign_services.training.contract import TrainingBackend

#: Name of this holder of the lock.
TRAINING = "training"
#: Commands that touch no tensor and need no lock.
_LOCK_FREE_COMMANDS = frozenset({"Describe"})


class TrainingTenant:
    """The training backend as the accelerator lock offloads and reloads it.

    Before a backend is created it uses no accelerator memory.
    """

    def __init__(self) -> None:
        self._backend: Offloadable | None = None

    def offload(self) -> None:
        if self._backend is not None:
            self._backend.offload()

    def reload(self) -> None:
        if self._backend is not None:
            self._backend.reload()

    def wrap_create(self, create: Callable[[], TrainingBackend]) -> Callable[[], TrainingBackend]:
        """Wrap `create` so that this object owns the created backend.

        The wrapper raises ValueError for a backend that cannot be offloaded.
        """

        def make() -> TrainingBackend:
            # Drop the old backend before creating the new one: both do not fit into memory.
            self._backend = None
            backend = create()
            if not isinstance(backend, Offloadable):
                raise ValueError(
                    f"rollout.placement is WithTrainer, and {type(backend).__name__} cannot be "
                    "offloaded: set trainer.backend.torch, or rollout.placement to Own"
                )
            self._backend = backend
            return backend

        return make


class Accelerator(Protocol):
    """Access to the accelerator that a trainer computes on."""

    def wrap_create(self, create: Callable[[], TrainingBackend]) -> Callable[[], TrainingBackend]:
        """Wrap the function that creates the backend."""

    def wrap_handlers(self, handlers: Mapping[str, Handler]) -> dict[str, Handler]:
        """Wrap the commands so that they wait for the accelerator."""

    def hold(self, purpose: str) -> AbstractContextManager[None]:
        """Hold the accelerator within the block."""


class SharedAccelerator:
    """An accelerator that the trainer shares with another tenant."""

    def __init__(self, lock: AcceleratorLock, tenant: TrainingTenant) -> None:
        self._lock = lock
        self._tenant = tenant

    def wrap_create(self, create: Callable[[], TrainingBackend]) -> Callable[[], TrainingBackend]:
        """See `TrainingTenant.wrap_create`."""
        return self._tenant.wrap_create(create)

    def wrap_handlers(self, handlers: Mapping[str, Handler]) -> dict[str, Handler]:
        """Wrap the commands so that each holds the lock while it runs.

        The wrapped commands also raise AcceleratorLockTimeout.
        """
        return {
            name: command if name in _LOCK_FREE_COMMANDS else self._with_lock(name, command)
            for name, command in handlers.items()
        }

    def hold(self, purpose: str) -> AbstractContextManager[None]:
        """Hold the lock within the block. Raises AcceleratorLockTimeout."""
        return self._lock.hold(TRAINING, purpose)

    def _with_lock(self, name: str, command: Handler) -> Handler:
        def run(payload: bytes) -> bytes:
            with self.hold(f"the command {name}"):
                return command(payload)

        return run


class ExclusiveAccelerator:
    """An accelerator that the trainer does not share: nothing has to be locked."""

    def wrap_create(self, create: Callable[[], TrainingBackend]) -> Callable[[], TrainingBackend]:
        return create

    def wrap_handlers(self, handlers: Mapping[str, Handler]) -> dict[str, Handler]:
        return dict(handlers)

    def hold(self, purpose: str) -> AbstractContextManager[None]:
        return nullcontext()
