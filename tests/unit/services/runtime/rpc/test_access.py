"""Authorization rules of the service contract."""

import pytest
from google.protobuf import descriptor_pool

from kubealign.access.certificate_authority import spiffe_id
from kubealign.process_settings import Role
from kubealign.v1 import critic_pb2, driver_pb2, rollout_pb2, scoring_pb2, sender_pb2, trainer_pb2
from kubealign_services.runtime.rpc.access import allowed_roles, certificate_role, denial_reason

FILES = [critic_pb2, driver_pb2, rollout_pb2, scoring_pb2, sender_pb2, trainer_pb2]


def test_allowed_roles_come_from_the_contract() -> None:
    assert allowed_roles("/kubealign.v1.Trainer/TrainStep") == {"driver"}
    assert allowed_roles("/kubealign.v1.WeightsSender/FetchWeights") == {"rollout", "reference", "trainer"}
    assert allowed_roles("/kubealign.v1.Driver/Progress") == {"runner"}


def test_every_method_names_existing_roles() -> None:
    known = {str(role) for role in Role}
    seen = 0
    for file in FILES:
        for service in file.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                roles = allowed_roles(f"/{service.full_name}/{method.name}")
                assert roles and roles <= known, (service.full_name, method.name, roles)
                seen += 1
    assert seen >= 20


def test_method_without_the_option_allows_no_role() -> None:
    # A method of a foreign contract loaded in every process, and an unknown method.
    pool = descriptor_pool.Default()
    assert pool.FindMethodByName("kubealign.v1.Trainer.TrainStep") is not None
    assert allowed_roles("/kubealign.v1.Trainer/Destroy") == frozenset()
    assert "the contract lets no role" in denial_reason("/kubealign.v1.Trainer/Destroy", "driver")


def test_denial_names_the_caller_and_the_allowed_roles() -> None:
    assert denial_reason("/kubealign.v1.Trainer/TrainStep", "driver") == ""
    text = denial_reason("/kubealign.v1.WeightsSender/FetchWeights", "reward")
    method = "/kubealign.v1.WeightsSender/FetchWeights"
    assert text == f"the role reward may not call {method}: only reference, rollout, trainer may"
    assert "names no role" in denial_reason("/kubealign.v1.Trainer/TrainStep", None)


@pytest.mark.parametrize("role", [*map(str, Role), None])
def test_health_and_reflection_are_open(role: str | None) -> None:
    assert denial_reason("/grpc.health.v1.Health/Check", role) == ""
    assert denial_reason("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", role) == ""


def test_role_comes_from_the_spiffe_identity() -> None:
    identity = spiffe_id("sums", Role.REWARD).encode()
    assert certificate_role([b"localhost", identity, b"127.0.0.1"]) == "reward"
    assert certificate_role([b"driver", b"localhost"]) is None
    assert certificate_role([b"spiffe://elsewhere/sums/driver"]) is None
    assert certificate_role([b"spiffe://kubealign/driver"]) is None
    assert certificate_role([b"spiffe://kubealign/a/b/driver"]) is None
    assert certificate_role([]) is None
