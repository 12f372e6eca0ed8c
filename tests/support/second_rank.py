"""A group of two ranks: the test's own process, and one that is started for it."""

import multiprocessing as mp
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from kubealign_services.training.commands.rank_group import CommandGroup, Handlers
from support.command_key import COMMAND_KEY
from support.free_address import free_address

_SECONDS = 60


@contextmanager
def two_ranks(
    make_handlers: Callable[..., Handlers], folder: Path, *arguments: Any
) -> Iterator[tuple[CommandGroup, Handlers]]:
    """Provide the group and the handlers of rank 0. Rank 1 is a process of its own, which must end well.

    Args:
        make_handlers: Function of a module: (folder, rank, number of ranks, *arguments) -> handlers.
    """
    rendezvous = free_address()
    other = mp.get_context("spawn").Process(
        target=_follow, args=(make_handlers, folder, rendezvous, arguments)
    )
    other.start()
    try:
        with CommandGroup(0, 2, rendezvous, _SECONDS, COMMAND_KEY) as group:
            yield group, make_handlers(folder, 0, 2, *arguments)
        other.join(30)
        assert other.exitcode == 0
    finally:
        if other.is_alive():
            other.kill()
        other.join(10)


def _follow(
    make_handlers: Callable[..., Handlers], folder: Path, rendezvous: str, arguments: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    with CommandGroup(1, 2, rendezvous, _SECONDS, COMMAND_KEY) as group:
        group.follow(make_handlers(folder, 1, 2, *arguments))
