"""The waiting line, without a model."""

import torch

from kubealign_services.generation.contract import GenerationRequest, SamplingParameters
from kubealign_services.generation.torch_engine.admission import Group, WaitingLine


def group(name: str, prompt: int, samples: int) -> Group:
    request = GenerationRequest(
        name, tuple(range(prompt)), tuple(range(samples)), SamplingParameters(max_tokens=4)
    )
    return Group(request, frozenset(), unfinished=samples)


def line(*groups: Group) -> WaitingLine:
    made = WaitingLine()
    for each in groups:
        made.append(each)
    return made


def admitted(waiting: WaitingLine, free: int, tokens: int) -> list[tuple[str, int, int]]:
    return [(each.group.request.request_id, each.first, each.count) for each in waiting.admit(free, tokens)]


def test_first_come_first_served_up_to_the_slots() -> None:
    waiting = line(group("a", 3, 2), group("b", 3, 2), group("c", 3, 1))
    assert admitted(waiting, 3, 100) == [("a", 0, 2), ("b", 0, 1)]
    assert waiting.samples() == 2
    assert admitted(waiting, 0, 100) == []
    assert admitted(waiting, 9, 100) == [("b", 1, 1), ("c", 0, 1)]
    assert (waiting.samples(), admitted(waiting, 9, 100)) == (0, [])


def test_prompt_tokens_of_one_pass() -> None:
    """4 + 4 fit into 9, a third does not, and nobody overtakes it."""
    waiting = line(group("a", 4, 1), group("b", 4, 5), group("c", 4, 1), group("d", 1, 1))
    assert admitted(waiting, 9, 9) == [("a", 0, 1), ("b", 0, 5)]
    assert admitted(waiting, 9, 9) == [("c", 0, 1), ("d", 0, 1)]


def test_a_prompt_above_the_limit_enters_alone() -> None:
    waiting = line(group("a", 2, 1), group("long", 50, 1), group("b", 2, 1))
    assert admitted(waiting, 9, 9) == [("a", 0, 1)]
    assert admitted(waiting, 9, 9) == [("long", 0, 1)]
    assert admitted(waiting, 9, 9) == [("b", 0, 1)]


def test_a_held_prompt_costs_no_tokens() -> None:
    first = group("a", 9, 3)
    waiting = line(first, group("b", 9, 1))
    assert admitted(waiting, 1, 9) == [("a", 0, 1)]
    first.held = torch.zeros(1)
    assert admitted(waiting, 9, 9) == [("a", 1, 2), ("b", 0, 1)]


def test_the_removed_are_gone() -> None:
    waiting = line(group("a", 1, 1), group("b", 1, 1))
    waiting.remove("a")
    waiting.remove("unknown")
    assert admitted(waiting, 9, 9) == [("b", 0, 1)]
