"""The mark of a worker's weights in its server."""

import asyncio

import pytest

from kubealign_services.generation.external.contract import ExternalEngineDied
from kubealign_services.generation.external.openai.weight_mark import WeightMark

pytestmark = pytest.mark.timeout(30)


class Label:
    """A server's label. gate: reads wait for it. asked: set by a read."""

    def __init__(self) -> None:
        self.value = "default"
        self.reads = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked = asyncio.Event()

    async def write(self, value: str) -> None:
        self.value = value

    async def read(self) -> str:
        self.reads += 1
        value = self.value
        self.asked.set()
        await self.gate.wait()
        return value

    def mark(self) -> WeightMark:
        return WeightMark("http://server", self.write, self.read)


async def loaded(label: Label) -> WeightMark:
    mark = label.mark()
    await mark.begin_update()
    await mark.finish_update()
    return mark


async def test_weights_are_incomplete_until_the_end_of_an_update() -> None:
    label = Label()
    mark = label.mark()
    await mark.check()
    await mark.begin_update()
    incomplete = label.value
    assert incomplete.endswith("-1-incomplete")
    await mark.begin_update()
    assert label.value == incomplete
    await mark.finish_update()
    assert label.value == incomplete.removesuffix("-incomplete")
    await mark.check()
    await mark.begin_update()
    assert label.value.endswith("-2-incomplete")
    await mark.close()


async def test_two_workers_have_different_marks() -> None:
    label = Label()
    first, second = await loaded(label), await loaded(label)
    await second.confirm()
    with pytest.raises(
        ExternalEngineDied, match=r"http://server has lost the weights .* another worker or job"
    ):
        await first.confirm()
    await first.close()
    await second.close()


@pytest.mark.parametrize("call", ["check", "confirm", "begin_update", "finish_update"])
async def test_a_restart_is_noticed(call: str) -> None:
    label = Label()
    mark = await loaded(label)
    if call == "finish_update":
        await mark.begin_update()
    label.value = "default"
    with pytest.raises(ExternalEngineDied, match=r"it has 'default'\): it was restarted"):
        await getattr(mark, call)()
    assert label.value == "default"
    await mark.close()


async def test_a_check_covers_only_responses_that_came_before_it() -> None:
    """A restart between the read of one check and the next response is noticed by the next check."""
    label = Label()
    mark = await loaded(label)
    label.gate.clear()
    label.asked.clear()
    label.reads = 0
    first = asyncio.create_task(mark.confirm())
    await label.asked.wait()
    label.value = "default"
    later = [asyncio.create_task(mark.confirm()) for _ in range(20)]
    await asyncio.sleep(0)
    assert label.reads == 1
    label.gate.set()
    await first
    for confirmation in later:
        with pytest.raises(ExternalEngineDied):
            await confirmation
    # They share one.
    assert label.reads == 2
    await mark.close()


async def test_a_cancelled_response_does_not_end_the_check_of_another() -> None:
    label = Label()
    mark = await loaded(label)
    label.gate.clear()
    leaving, staying = asyncio.create_task(mark.confirm()), asyncio.create_task(mark.confirm())
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.sleep(0)
    label.gate.set()
    await staying
    assert leaving.cancelled()
    await mark.close()


async def test_checks_end_with_the_engine() -> None:
    label = Label()
    mark = await loaded(label)
    label.gate.clear()
    confirmation = asyncio.create_task(mark.confirm())
    await asyncio.sleep(0)
    await mark.close()
    with pytest.raises(asyncio.CancelledError):
        await confirmation
