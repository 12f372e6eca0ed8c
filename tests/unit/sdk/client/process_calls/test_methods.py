"""Methods of the services: names, descriptions, requests and replies in JSON."""

import pytest

from kubealign.client.errors import NotPossible
from kubealign.client.process_calls.methods import (
    MalformedRequest,
    ServiceMethod,
    find_method,
    methods_of,
    reply_to_json,
)
from kubealign.v1 import driver_pb2, rollout_pb2

SERVICES = ("kubealign.v1.RolloutService", "kubealign.v1.Reward", "kubealign.v1.Driver")


@pytest.fixture
def methods() -> list[ServiceMethod]:
    return methods_of((*SERVICES, "grpc.health.v1.Health"))


@pytest.fixture
def generate(methods: list[ServiceMethod]) -> ServiceMethod:
    return find_method("rollout-0", methods, "Generate")


def test_methods_of_services_of_the_project(methods: list[ServiceMethod]) -> None:
    names = [method.name for method in methods]
    assert names == ["Driver.Progress", "Reward.Score", "RolloutService.Generate", "RolloutService.Status"]
    assert [method.callers for method in methods] == [("runner",), ("driver",), ("driver",), ("driver",)]
    assert [method.name for method in methods if method.streams] == ["RolloutService.Generate"]


@pytest.mark.parametrize("name", ["Score", "Reward.Score", "kubealign.v1.Reward.Score"])
def test_method_is_found_by_each_of_its_names(methods: list[ServiceMethod], name: str) -> None:
    method = find_method("reward-0", methods, name)
    assert (method.name, method.path) == ("Reward.Score", "/kubealign.v1.Reward/Score")


def test_unknown_method_lists_the_methods(methods: list[ServiceMethod]) -> None:
    expected = "p has no method Scores: there are Driver.Progress, Reward.Score, RolloutService.Generate, "
    with pytest.raises(NotPossible, match=expected):
        find_method("p", methods, "Scores")
    with pytest.raises(NotPossible, match="p has no method Score: there are none"):
        find_method("p", [], "Score")


def test_ambiguous_method_lists_the_services() -> None:
    served = methods_of(["kubealign.v1.Trainer", "kubealign.v1.Critic"])
    with pytest.raises(NotPossible, match=r"choose one of Critic.Save, Trainer.Save"):
        find_method("p", served, "Save")
    assert find_method("p", served, "Critic.Save").name == "Critic.Save"


def test_request_has_the_field_names_of_the_proto(generate: ServiceMethod) -> None:
    text = '{"item": {"prompt_tokens": [1], "minVersion": "3", "columns": "e30=", "sampling": {"topP": 1}}}'
    sampling = rollout_pb2.Sampling(top_p=1.0)
    item = rollout_pb2.WorkItem(prompt_tokens=[1], min_version=3, columns=b"{}", sampling=sampling)
    assert generate.parse_request(text) == rollout_pb2.GenerateRequest(item=item)
    assert generate.parse_request(" ") == rollout_pb2.GenerateRequest()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "the request of RolloutService.Generate is not JSON: "),
        ("[1]", "must be a JSON object"),
        ('{"itm": 1}', "RolloutService.Generate has no field itm: GenerateRequest has item"),
        ('{"item": {"sampling": {"topp": 1}}}', "no field item.sampling.topp: Sampling has max_tokens, "),
        ('{"item": {"continuations": [{"a": 1}]}}', "no field item.continuations.a: Continuation has tokens"),
        ('{"item": {"fence": -1}}', "is invalid: .*Value out of range: -1"),
        ('{"item": {"prompt_tokens": "a"}}', "prompt_tokens"),
    ],
)
def test_invalid_request_names_the_field(generate: ServiceMethod, text: str, expected: str) -> None:
    with pytest.raises(MalformedRequest, match=expected):
        generate.parse_request(text)


def test_description_lists_nested_fields(methods: list[ServiceMethod]) -> None:
    text = find_method("reward-0", methods, "Score").describe()
    assert text.startswith("Reward.Score returns ScoreReply (callers: driver)\n  rollouts: list of Rollout\n")
    assert (
        "\n    sequence: PackedBatch\n      sample_ids: list of string\n      columns: bytes in base64\n"
        in text
    )
    assert "finish_reason: FINISH_REASON_UNSPECIFIED | FINISH_REASON_STOP | " in text


def test_reply_contains_zero_values() -> None:
    reply = driver_pb2.Progress(fence=2, waiting_for="rollouts")
    assert reply_to_json(reply) == {"fence": "2", "step": "0", "max_steps": "0", "waiting_for": "rollouts"}
