"""Command queue of a model's ranks: rank 0 leads, and all ranks run the same commands in one order.

Rank 0 writes each command (a name and bytes) into the group's store, every rank runs the handler of that
name, and rank 0 returns its own answer once all have finished. So no two ranks ever enter different
collectives. A command that fails on some ranks but not on others leaves them out of step: the group is then
broken and restarts as a whole.

Everything in the store is sealed (`command_seal`): its port asks for no password.
"""

import contextlib
import json
import logging
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from types import TracebackType
from typing import Self

import torch.distributed as dist
from torch.distributed import DistError, DistNetworkError, DistStoreError, Store  # type: ignore[attr-defined]

from kubealign_services.runtime.process.rank_rendezvous import GroupLost, join_process_group
from kubealign_services.training.commands.command_seal import (
    KEY_BYTES,
    CommandSeal,
    ForgedCommand,
    agree_on_session,
)

log = logging.getLogger(__name__)

Handlers = Mapping[str, Callable[[bytes], bytes]]

# The store refuses values of 8 MiB.
_CHUNK_BYTES = 4 << 20
# Seconds that an idle rank waits before it checks that rank 0 is reachable. A closed connection ends the wait
# at once; this covers a machine that disappears without closing its connections.
_IDLE_SECONDS = 60.0
# Minimum seconds that rank 0 waits for the other ranks' outcomes after its own.
_OUTCOME_SECONDS = 5.0
# Seconds that rank 0 waits for the other ranks to read the shutdown command.
_SHUTDOWN_SECONDS = 10.0
_SHUTDOWN_COMMAND = ""
# Between the name of a command and its payload.
_NAME_END = b"\0"
# A command has at most 4 GiB.
_MAX_PARTS = 1024


class RankFailed(RuntimeError):
    """A command failed on another rank, or that rank did not answer in time. The group is broken."""


class CommandGroup:
    """The ranks of one model. A context manager: entering performs the rendezvous, leaving ends the group.

    A single rank needs neither a store nor a process group.
    """

    def __init__(
        self, rank: int, world_size: int, rendezvous: str | None, timeout: float, key: bytes = b""
    ) -> None:
        """Configure the group without connecting.

        Args:
            rendezvous: host:port of rank 0; None for one rank.
            timeout: Seconds that the ranks wait for one another: at the rendezvous, within a collective, and
                for the slowest rank's answer.
            key: Key of the commands, see `derive_command_key`; empty for one rank.
        """
        if world_size > 1 and rendezvous is None:
            raise ValueError(f"{world_size} ranks need a rendezvous, but none is set")
        if world_size > 1 and len(key) != KEY_BYTES:
            raise ValueError(f"{world_size} ranks need a key of {KEY_BYTES} bytes; it has {len(key)}")
        self._rank = rank
        self._world_size = world_size
        self._rendezvous = rendezvous
        self._timeout = timeout
        self._key = key
        self._seal = CommandSeal(key, b"")
        self._store: Store | None = None
        self._command_number = 0
        self._failure: str | None = None

    def __enter__(self) -> Self:
        """Wait for the other ranks.

        Raises GroupLost when they do not come, OSError when rank 0's port is in use, ForgedCommand when
        another process interferes.
        """
        if self._world_size > 1:
            assert self._rendezvous is not None
            self._store = join_process_group(self._rank, self._world_size, self._rendezvous, self._timeout)
            try:
                session = agree_on_session(self._store, self._rank, self._world_size, self._timeout)
            except DistError as error:
                raise GroupLost(f"the ranks at {self._rendezvous} did not begin a session") from error
            self._seal = CommandSeal(self._key, session)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Publish the shutdown command on rank 0.

        When an error ends the group, the other ranks see rank 0 vanish instead.
        """
        try:
            if self._store is not None and self._rank == 0 and error is None and self._failure is None:
                self._publish(self._store, _SHUTDOWN_COMMAND, b"")
                with contextlib.suppress(DistError):
                    others = [f"left/{rank}" for rank in range(1, self._world_size)]
                    self._store.wait(others, timedelta(seconds=min(_SHUTDOWN_SECONDS, self._timeout)))
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
            self._store = None

    def run(self, name: str, payload: bytes, handlers: Handlers) -> bytes:
        """Run the handler of that name on every rank, and return rank 0's answer when all have finished.

        For rank 0 only.

        Raises what rank 0's handler raises, if the others fail alike; RankFailed, with the other rank's
        error, if they do not, and when a collective failed. KeyError for a name without a handler, before
        any rank runs it.
        """
        handler = handlers[name]
        if self._world_size == 1:
            return handler(payload)
        if self._store is None or self._rank != 0:
            raise RuntimeError("commands are run by rank 0, within the group's context")
        if self._failure is not None:
            raise RankFailed(f"the group is broken and restarts as a whole: {self._failure}")
        number = self._publish(self._store, name, payload)
        # A collective with a hanging rank has spent this time already.
        deadline = time.monotonic() + self._timeout
        try:
            answer = handler(payload)
        except Exception as error:
            self._check_outcomes(self._store, number, name, error, deadline)
            if _is_collective_error(error):
                self._failure = f"a collective of {name} failed on every rank: {error}"
                raise RankFailed(self._failure) from error
            raise
        self._check_outcomes(self._store, number, name, None, deadline)
        return answer

    def follow(self, handlers: Handlers) -> None:
        """Run rank 0's commands until the shutdown command. For ranks above 0.

        A handler's error is reported to rank 0, which decides; following goes on. Raises GroupLost when rank
        0 vanishes, ForgedCommand for a command that is not rank 0's.
        """
        if self._store is None or self._rank == 0:
            raise RuntimeError("ranks above 0 follow, within the group's context")
        try:
            while True:
                name, payload = self._receive_command(self._store)
                if name == _SHUTDOWN_COMMAND:
                    self._store.set(f"left/{self._rank}", "")
                    return
                outcome = self._run_handler(handlers, name, payload)
                key = f"result/{self._command_number}/{self._rank}"
                self._store.set(key, self._seal.seal(key, json.dumps(outcome).encode()))  # type: ignore[arg-type]
        except DistError as error:
            raise GroupLost(f"rank 0 at {self._rendezvous} is gone") from error

    def _publish(self, store: Store, name: str, payload: bytes) -> int:
        """Write the command, its chunks first. Returns its number."""
        self._command_number += 1
        purpose = f"command/{self._command_number}"
        sealed = self._seal.seal(purpose, name.encode() + _NAME_END + payload)
        parts = [sealed[first : first + _CHUNK_BYTES] for first in range(0, len(sealed), _CHUNK_BYTES)]
        for index, part in enumerate(parts):
            store.set(f"part/{self._command_number}/{index}", part)  # type: ignore[arg-type]  # bytes do
        store.set(purpose, str(len(parts)))
        return self._command_number

    def _receive_command(self, store: Store) -> tuple[str, bytes]:
        """Wait for the next command, without a time limit."""
        self._command_number += 1
        key = f"command/{self._command_number}"
        while True:
            try:
                store.wait([key], timedelta(seconds=_IDLE_SECONDS))
                break
            except DistNetworkError:
                raise
            except DistStoreError:
                # Detects an unreachable rank 0: this request has a deadline of its own.
                store.check([key])
        parts = [
            store.get(f"part/{self._command_number}/{index}") for index in range(_parse_count(store.get(key)))
        ]
        name, _, payload = self._seal.open(key, b"".join(parts)).partition(_NAME_END)
        return name.decode(), payload

    def _run_handler(self, handlers: Handlers, name: str, payload: bytes) -> dict[str, str]:
        try:
            handlers[name](payload)
        except Exception as error:
            log.exception("a command failed", extra={"command": name, "rank": self._rank})
            return {"kind": type(error).__name__, "message": str(error)}
        return {}

    def _check_outcomes(
        self, store: Store, number: int, name: str, mine: Exception | None, deadline: float
    ) -> None:
        """Wait for the other ranks' outcomes and delete the command.

        Raises RankFailed when one differs from rank 0's.
        """
        kind = None if mine is None else type(mine).__name__
        deadline = max(deadline, time.monotonic() + min(_OUTCOME_SECONDS, self._timeout))
        for rank in range(1, self._world_size):
            key = f"result/{number}/{rank}"
            try:
                store.wait([key], timedelta(seconds=max(0.001, deadline - time.monotonic())))
                outcome = json.loads(self._seal.open(key, store.get(key)))
            except ForgedCommand as error:
                self._failure = str(error)
                raise RankFailed(self._failure) from (mine or error)
            except DistError as error:
                self._failure = f"rank {rank} did not answer {name} within {self._timeout:g} s"
                raise RankFailed(self._failure) from (mine or error)
            if outcome.get("kind") != kind:
                theirs = f"{outcome['kind']}: {outcome['message']}" if outcome else "no error"
                ours = "none" if mine is None else f"{kind}: {mine}"
                self._failure = f"{name} ended on rank {rank} with {theirs}; on rank 0 with {ours}"
                raise RankFailed(self._failure) from mine
            store.delete_key(key)
        self._delete_command(store, number)

    @staticmethod
    def _delete_command(store: Store, number: int) -> None:
        """Delete the keys of a command from the store."""
        parts = _parse_count(store.get(f"command/{number}"))
        for key in [f"command/{number}", *(f"part/{number}/{index}" for index in range(parts))]:
            store.delete_key(key)


def _is_collective_error(error: BaseException) -> bool:
    """Return True when an error, or one of its causes, comes from a collective: a rank was lost or too slow.

    The process group is of no use afterwards, also where all ranks report the error. gloo raises plain
    RuntimeErrors, whose text begins with the path of gloo's source file.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, DistError) or (type(cause) is RuntimeError and "/gloo/" in str(cause)):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def _parse_count(text: bytes) -> int:
    """Return the number of a command's parts. Raises ForgedCommand for anything else."""
    if not text.isdigit() or len(text) > 4 or int(text) > _MAX_PARTS:
        raise ForgedCommand("the number of a command's parts was not written by a process of this group")
    return int(text)
