"""Command groups in real processes over a real store."""

import multiprocessing as mp
import os
import socket
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import Store

from kubealign_services.runtime.process.rank_rendezvous import GroupLost, connect_store, join_process_group
from kubealign_services.training.commands.command_seal import ForgedCommand
from kubealign_services.training.commands.rank_group import CommandGroup, RankFailed
from support.command_key import COMMAND_KEY
from support.free_address import free_address

pytestmark = pytest.mark.timeout(120)


def sum_of_ranks(payload: bytes) -> bytes:
    """Run a collective: sum the payload's number over the ranks."""
    total = torch.tensor([float(payload)])
    dist.all_reduce(total)
    return str(total.item()).encode()


def fail_alike(payload: bytes) -> bytes:
    raise ArithmeticError(f"no {payload.decode()}")


def fail_on_rank_one(payload: bytes) -> bytes:
    if dist.get_rank() == 1:
        raise OSError("disk full")
    return payload


def hang_on_rank_one(payload: bytes) -> bytes:
    if dist.get_rank() == 1:
        time.sleep(60)
    return payload


def sum_too_late(payload: bytes) -> bytes:
    """Enter a collective on rank 0 after the other rank has given up waiting for a second."""
    group = dist.new_group(timeout=timedelta(seconds=1))
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 0:
        store.wait(["gave-up"], timedelta(seconds=30))
    total = torch.tensor([float(payload)])
    try:
        dist.all_reduce(total, group=group)
    finally:
        store.set("gave-up", "")
    return str(total.item()).encode()


HANDLERS = {
    "Sum": sum_of_ranks,
    "SumTooLate": sum_too_late,
    "FailAlike": fail_alike,
    "FailOnOne": fail_on_rank_one,
    "HangOnOne": hang_on_rank_one,
    "Length": lambda payload: str(len(payload)).encode(),
}


def follower(rank: int, world_size: int, rendezvous: str, timeout: float, out: Connection) -> None:
    try:
        with CommandGroup(rank, world_size, rendezvous, timeout, COMMAND_KEY) as group:
            group.follow(HANDLERS)
        out.send("told to stop")
    except GroupLost as error:
        out.send(f"lost: {error}")
    except ForgedCommand as error:
        out.send(f"forged: {error}")


def vanishing_leader(rendezvous: str) -> None:
    with CommandGroup(0, 2, rendezvous, 30, COMMAND_KEY) as group:
        group.run("Sum", b"1", HANDLERS)
        os._exit(9)


Start = Callable[..., tuple[mp.process.BaseProcess, Connection]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Yield a function that starts processes. They are ended by their handles with the test."""
    context = mp.get_context("spawn")
    started: list[mp.process.BaseProcess] = []

    def begin(target: Callable[..., None], *args: Any) -> tuple[mp.process.BaseProcess, Connection]:
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=target, args=(*args, theirs) if target is follower else args)
        process.start()
        theirs.close()
        started.append(process)
        return process, ours

    yield begin
    for process in started:
        process.join(0.1)
        if process.is_alive():
            process.kill()
        process.join(10)


@pytest.fixture
def rendezvous() -> str:
    return free_address()


def heard(pipe: Connection) -> str:
    assert pipe.poll(60), "the follower said nothing in a minute"
    message: str = pipe.recv()
    return message


def test_all_ranks_run_the_commands_of_rank_0(start: Start, rendezvous: str) -> None:
    pipes = [start(follower, rank, 3, rendezvous, 30.0)[1] for rank in (1, 2)]
    with CommandGroup(0, 3, rendezvous, 30, COMMAND_KEY) as group:
        assert group.run("Sum", b"2", HANDLERS) == b"6.0"
        # Longer than the limit of one value in the store.
        assert group.run("Length", bytes(9 << 20), HANDLERS) == str(9 << 20).encode()
        assert group.run("Length", b"", HANDLERS) == b"0"
        with pytest.raises(ArithmeticError, match="no such luck"):
            group.run("FailAlike", b"such luck", HANDLERS)
        with pytest.raises(KeyError):
            group.run("Unknown", b"", HANDLERS)
        assert group.run("Sum", b"5", HANDLERS) == b"15.0"
        assert group._store is not None and group._store.num_keys() < 20
        with pytest.raises(GroupLost, match="has a rank 2 already: a group restarts as a whole"):
            join_process_group(2, 3, rendezvous, 30)
    assert [heard(pipe) for pipe in pipes] == ["told to stop"] * 2


def test_an_error_on_another_rank_reaches_rank_0_and_breaks_the_group(start: Start, rendezvous: str) -> None:
    _, pipe = start(follower, 1, 2, rendezvous, 30.0)
    with CommandGroup(0, 2, rendezvous, 30, COMMAND_KEY) as group:
        with pytest.raises(
            RankFailed, match="FailOnOne ended on rank 1 with OSError: disk full; on rank 0 with none"
        ):
            group.run("FailOnOne", b"", HANDLERS)
        with pytest.raises(RankFailed, match="restarts as a whole: FailOnOne ended on rank 1"):
            group.run("Sum", b"1", HANDLERS)
    assert heard(pipe).startswith("lost: rank 0")


def test_a_collective_that_fails_on_every_rank_breaks_the_group(start: Start, rendezvous: str) -> None:
    """A rank that is stopped for longer than the others wait ends the collective on all of them alike."""
    _, pipe = start(follower, 1, 2, rendezvous, 30.0)
    with CommandGroup(0, 2, rendezvous, 30, COMMAND_KEY) as group:
        with pytest.raises(RankFailed, match="a collective of SumTooLate failed on every rank: "):
            group.run("SumTooLate", b"1", HANDLERS)
        with pytest.raises(RankFailed, match="restarts as a whole: a collective of SumTooLate"):
            group.run("Length", b"", HANDLERS)
    assert heard(pipe).startswith("lost: rank 0")


def test_a_rank_that_does_not_answer_is_named(start: Start, rendezvous: str) -> None:
    process, _ = start(follower, 1, 2, rendezvous, 30.0)
    with CommandGroup(0, 2, rendezvous, 30, COMMAND_KEY) as group:
        assert group.run("Sum", b"1", HANDLERS) == b"2.0"
        group._timeout = 0.5
        with pytest.raises(RankFailed, match=r"rank 1 did not answer HangOnOne within 0\.5 s"):
            group.run("HangOnOne", b"", HANDLERS)
    assert process.is_alive()


def test_followers_end_when_rank_0_is_gone(start: Start, rendezvous: str) -> None:
    _, pipe = start(follower, 1, 2, rendezvous, 30.0)
    leader, _ = start(vanishing_leader, rendezvous)
    assert heard(pipe) == f"lost: rank 0 at {rendezvous} is gone"
    leader.join(30)
    assert leader.exitcode == 9


@pytest.mark.parametrize("rank", [0, 1])
def test_missing_ranks_are_waited_for_until_the_deadline(rank: int, start: Start, rendezvous: str) -> None:
    _, pipe = start(follower, rank, 2, rendezvous, 1.0)
    assert heard(pipe).startswith(f"lost: the 2 ranks did not meet at {rendezvous} in 1 s")


def test_ranks_meet_at_a_host_name(start: Start, rendezvous: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    named = rendezvous.replace("127.0.0.1", "localhost")
    _, pipe = start(follower, 1, 2, named, 30.0)
    with CommandGroup(0, 2, named, 30, COMMAND_KEY) as group:
        assert group.run("Sum", b"2", HANDLERS) == b"4.0"
    assert heard(pipe) == "told to stop"


def test_an_unresolvable_name_is_retried_until_the_deadline(start: Start) -> None:
    _, pipe = start(follower, 1, 2, "trainer-0.sums-peers.invalid:29500", 1.0)
    message = heard(pipe)
    assert message.startswith("lost: the 2 ranks did not meet at trainer-0.sums-peers.invalid:29500 in 1 s")
    assert "rank 0 was not reached" in message


def test_a_port_in_use_is_an_error_at_once(rendezvous: str) -> None:
    host, port = rendezvous.split(":")
    with socket.create_server((host, int(port))), pytest.raises(OSError, match="in use"):
        CommandGroup(0, 2, rendezvous, 30.0, COMMAND_KEY).__enter__()


def test_one_rank_needs_no_rendezvous() -> None:
    with CommandGroup(0, 1, None, 1.0) as group:
        assert group.run("Length", b"abc", HANDLERS) == b"3"
    with pytest.raises(ValueError, match="2 ranks need a rendezvous"):
        CommandGroup(0, 2, None, 1.0)


def intruder(rendezvous: str) -> Store:
    """Connect to the group's store as any process of the machine can."""
    host, _, port = rendezvous.rpartition(":")
    return connect_store(host, int(port), 30.0)


@pytest.mark.parametrize("forgery", ["own", "replayed"])
def test_a_command_of_another_process_is_refused(start: Start, rendezvous: str, forgery: str) -> None:
    """Check a command that an intruder writes into the store, and one of rank 0 under another number."""
    _, pipe = start(follower, 1, 2, rendezvous, 30.0)
    secret = b"a prompt that nobody else may read"
    read: list[bytes] = []

    def spy(payload: bytes) -> bytes:
        read.append(intruder(rendezvous).get("part/1/0"))
        return str(len(payload)).encode()

    with CommandGroup(0, 2, rendezvous, 30, COMMAND_KEY) as group:
        group.run("Length", secret, {"Length": spy})
        assert secret not in read[0] and len(read[0]) > len(secret)
        store = intruder(rendezvous)
        command = read[0] if forgery == "replayed" else b"x" * 12 + b"Length\0" + secret
        store.set("part/2/0", command)  # type: ignore[arg-type]  # bytes do
        store.set("command/2", "1")
        assert heard(pipe) == "forged: command/2 was not written by a process of this group"
        group._failure = "the follower has ended"


def test_an_outcome_of_another_process_is_refused(start: Start, rendezvous: str) -> None:
    start(follower, 1, 2, rendezvous, 30.0)
    with CommandGroup(0, 2, rendezvous, 30, COMMAND_KEY) as group:

        def forge(payload: bytes) -> bytes:
            intruder(rendezvous).set("result/1/1", "{}")
            return payload

        with pytest.raises(RankFailed, match="result/1/1 was not written by a process of this group"):
            group.run("HangOnOne", b"", {"HangOnOne": forge})


def test_ranks_with_other_keys_do_not_work_together(start: Start, rendezvous: str) -> None:
    _, pipe = start(follower, 1, 2, rendezvous, 30.0)
    with CommandGroup(0, 2, rendezvous, 5, bytes(32)) as group:
        with pytest.raises(RankFailed, match="rank 1 did not answer Length within 5 s"):
            group.run("Length", b"1", HANDLERS)
        assert heard(pipe) == "forged: command/1 was not written by a process of this group"


def test_several_ranks_need_a_key() -> None:
    with pytest.raises(ValueError, match="2 ranks need a key of 32 bytes; it has 0"):
        CommandGroup(0, 2, "127.0.0.1:1", 1.0)
