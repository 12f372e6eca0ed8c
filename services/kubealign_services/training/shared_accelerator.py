"""A trained model that shares its accelerator: each command holds the lease while it runs."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from kubealign_services.residence.contract import Movable
from kubealign_services.residence.lease import Lease
from kubealign_services.training.contract import TrainingBackend
from kubealign_services.training.serving import Handler

#: The tenant's name.
TRAINING = "training"
#: Commands that touch no tensor: they wait for nobody.
_FREE = frozenset({"Describe"})


class TrainingTenant:
    """The backend as the lease moves it. Until one is made it has nothing on the accelerator."""

    def __init__(self) -> None:
        self._backend: Movable | None = None

    def leave(self) -> None:
        if self._backend is not None:
            self._backend.offload()

    def enter(self) -> None:
        if self._backend is not None:
            self._backend.reload()

    def making(self, create: Callable[[], TrainingBackend]) -> Callable[[], TrainingBackend]:
        """`create`, whose backend is this tenant's from then on. Raises ValueError for one that cannot be
        moved."""

        def make() -> TrainingBackend:
            # The old one goes before the new one comes: there is no room for both.
            self._backend = None
            backend = create()
            if not isinstance(backend, Movable):
                raise ValueError(
                    f"rollout.placement is WithTrainer, and {type(backend).__name__} cannot give its memory "
                    "back: set trainer.backend.torch, or rollout.placement to Own"
                )
            self._backend = backend
            return backend

        return make


class Accelerator(Protocol):
    """What a trainer asks of the accelerator that it computes on."""

    def making(self, create: Callable[[], TrainingBackend]) -> Callable[[], TrainingBackend]:
        """How its backend is made."""

    def leased(self, handlers: Mapping[str, Handler]) -> dict[str, Handler]:
        """Its commands, to be run when the accelerator is free for them."""

    def held(self, purpose: str) -> AbstractContextManager[None]:
        """Have it for the block."""


class SharedAccelerator:
    """What a trainer needs to share its accelerator with another tenant."""

    def __init__(self, lease: Lease, tenant: TrainingTenant) -> None:
        self._lease = lease
        self._tenant = tenant

    def making(self, create: Callable[[], TrainingBackend]) -> Callable[[], TrainingBackend]:
        """See `TrainingTenant.making`."""
        return self._tenant.making(create)

    def leased(self, handlers: Mapping[str, Handler]) -> dict[str, Handler]:
        """The same commands, each of which holds the lease while it runs. They raise LeaseTimeout too."""
        return {
            name: command if name in _FREE else self._leased(name, command)
            for name, command in handlers.items()
        }

    def held(self, purpose: str) -> AbstractContextManager[None]:
        """Hold the lease within the block. Raises LeaseTimeout."""
        return self._lease.held(TRAINING, purpose)

    def _leased(self, name: str, command: Handler) -> Handler:
        def run(payload: bytes) -> bytes:
            with self.held(f"the command {name}"):
                return command(payload)

        return run


class OwnAccelerator:
    """In the place of a `SharedAccelerator`, where nobody else wants it."""

    def making(self, create: Callable[[], TrainingBackend]) -> Callable[[], TrainingBackend]:
        return create

    def leased(self, handlers: Mapping[str, Handler]) -> dict[str, Handler]:
        return dict(handlers)

    def held(self, purpose: str) -> AbstractContextManager[None]:
        return nullcontext()
