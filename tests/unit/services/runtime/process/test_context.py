"""Sub-contexts of one process: separate names and threads, and a common end."""

import asyncio
import logging
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kubealign.process_settings import NatsAccess, ProcessSettings, RedisAccess, Role, TlsFiles
from kubealign.spec.sections.training import Trainer
from kubealign.v1 import training_pb2
from kubealign_services.roles.colocated.run_together import run_together
from kubealign_services.runtime.process.context import ProcessContext
from kubealign_services.telemetry.heartbeat import Heartbeat
from kubealign_services.training.commands.rank_group import CommandGroup
from kubealign_services.training.commands.server import CommandDispatcher

pytestmark = pytest.mark.timeout(30)


def context(beats: list[dict[str, Any]]) -> ProcessContext:
    """Return a context with only what sub-contexts need. Heartbeats are appended to `beats`."""
    nowhere = Path("/nowhere")
    settings = ProcessSettings(
        name="trainer-1",
        role=Role.TRAINER,
        rank=1,
        world_size=2,
        job=nowhere,
        run_dir=nowhere,
        shared_memory=nowhere,
        listen="127.0.0.1:1",
        tls=TlsFiles(ca=nowhere, certificate=nowhere, key=nowhere),
        nats=NatsAccess(url="tls://x:1", user="u", password="p"),
        redis=RedisAccess(host="x", port=1, user="u", password="p", prefix="x:"),
        rendezvous="127.0.0.1:2",
        termination=nowhere,
    )
    read_model: Any = SimpleNamespace(
        set_heartbeat=lambda process, values: beats.append({"of": process, **values})
    )
    return ProcessContext(
        settings=settings,
        job=cast("Any", SimpleNamespace(spec=SimpleNamespace(trainer=Trainer()))),
        logger=logging.getLogger("test"),
        stop=asyncio.Event(),
        metrics=cast("Any", None),
        read_model=read_model,
        heartbeat=Heartbeat(read_model, "trainer-1", "trainer"),
    )


async def test_sub_context_has_its_own_name_and_thread_and_no_address() -> None:
    main_context = context([])
    part = main_context.sub_context("rollout-1", Role.ROLLOUT)
    assert (part.settings.name, part.settings.role) == ("rollout-1", Role.ROLLOUT)
    assert (part.settings.rank, part.settings.world_size) == (0, 1)
    assert (part.settings.listen, part.settings.rendezvous) == (None, None)
    assert part.stop is main_context.stop
    inside, leave = threading.Event(), threading.Event()

    def long() -> str:
        inside.set()
        leave.wait(20)
        return threading.current_thread().name

    pending = asyncio.ensure_future(part.compute(long))
    await asyncio.to_thread(inside.wait, 10)
    # The other thread is free, and the process reports the work that blocks its shutdown.
    assert await main_context.compute(lambda: "done") == "done"
    assert "long" in main_context.running_computation
    leave.set()
    assert (await pending).startswith("rollout-1")
    assert main_context.running_computation == ""
    main_context.close()
    with pytest.raises(RuntimeError, match="after shutdown"):
        await part.compute(long)


def test_heartbeat_merges_fields_and_the_main_part_takes_precedence() -> None:
    beats: list[dict[str, Any]] = []
    main_context = context(beats)
    main_context.heartbeat.set_fields(lambda: {"step": 3, "weight_version": 3})
    part = main_context.sub_context("rollout-1", Role.ROLLOUT)
    part.heartbeat.set_fields(lambda: {"running": 8, "weight_version": 2})
    fields = {name: value for name, value in beats[-1].items() if name != "time"}
    assert fields == {"of": "trainer-1", "role": "trainer", "step": 3, "running": 8, "weight_version": 3}


async def _ends() -> None:
    await asyncio.sleep(0)


async def _fails() -> None:
    raise OSError("the bus is gone")


async def test_leading_part_ends_the_process_and_any_failure_fails_it() -> None:
    ended: list[str] = []

    async def stays(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(name)

    await run_together(_ends(), stays("other"), graceful=True)
    assert ended == ["other"]
    with pytest.raises(OSError, match="the bus is gone"):
        await run_together(_fails(), stays("other"), graceful=True)
    with pytest.raises(OSError, match="the bus is gone"):
        await run_together(stays("leading"), _fails(), graceful=True)
    assert ended == ["other", "other", "leading"]


async def test_leading_part_outlives_a_part_that_ended_normally() -> None:
    leave = asyncio.Event()
    ended: list[str] = []

    async def leading() -> None:
        await leave.wait()
        ended.append("leading")

    both = asyncio.ensure_future(run_together(leading(), _ends(), graceful=True))
    await asyncio.sleep(0.01)
    assert not both.done()
    leave.set()
    await both
    assert ended == ["leading"]


async def test_heartbeats_name_the_command_in_progress() -> None:
    main_context = context([])
    seen: list[Any] = []

    def save(payload: bytes) -> bytes:
        seen.append(dispatcher.heartbeat()["computing"])
        return training_pb2.SaveReply().SerializeToString()

    dispatcher = CommandDispatcher(main_context, CommandGroup(0, 1, None, 1.0), {"Save": save})
    await dispatcher.run("Save", training_pb2.SaveRequest(), training_pb2.SaveReply)
    assert seen == ["Save"] and dispatcher.heartbeat()["computing"] == ""
    main_context.close()
