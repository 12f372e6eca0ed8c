"""Registry of roles: complete, and equal to the names that other files must list."""

import json
import re

import pytest

from kubealign.process_settings import Role
from kubealign.role_specs import (
    ROLE_SPECS,
    SERVERS,
    ComputePhase,
    StartStage,
    display_position,
    role_of_group,
)
from kubealign.roles import Process, roles
from kubealign.spec.cross_field_validation import RESERVED_NAMES
from kubealign.spec.docs.job_template import job_template
from kubealign.spec.job import AlignmentJob, AlignmentJobSpec
from support.doc_blocks import ROOT

#: A role that is added later has its own test.
KNOWN = [
    *("driver", "trainer", "critic", "rollout", "reward", "reference", "teacher"),
    *("prepare", "nats", "redis"),
]
PROCESSES = [spec for spec in ROLE_SPECS.values() if spec.module is not None]


def named(**properties: object) -> list[str]:
    """Return the known roles that have all of these properties."""
    return [
        name
        for name in KNOWN
        if all(getattr(ROLE_SPECS[name], key) == value for key, value in properties.items())
    ]


def test_every_certificate_role_except_the_runner_is_registered() -> None:
    assert {spec.certificate for spec in ROLE_SPECS.values()} == {*Role, None} - {Role.RUNNER}
    assert all(spec.certificate == name for name, spec in ROLE_SPECS.items() if name in set(Role))


def test_properties_of_the_roles() -> None:
    assert named(trains=True) == ["trainer", "critic"]
    assert named(elastic=True) == ["rollout", "reward", "reference", "teacher"]
    assert named(compute=ComputePhase.SCORING) == ["reward", "reference", "teacher"]
    assert named(is_worker=True) == ["trainer", "critic", "rollout", "reward", "reference", "teacher"]
    assert named(start=StartStage.LAST) == ["driver"]
    assert named(serves=False) == ["prepare", "nats", "redis"]
    assert [name for name in ROLE_SPECS if name in KNOWN] == KNOWN
    assert SERVERS == ("nats", "redis")


def test_display_order_ends_with_unknown_roles() -> None:
    assert sorted(["unknown", *reversed(KNOWN)], key=display_position) == [*KNOWN, "unknown"]


@pytest.mark.parametrize("spec", PROCESSES, ids=lambda spec: spec.name)
def test_modules_and_sections_exist(spec: object) -> None:
    module, section, model = (getattr(spec, name) for name in ("module", "section", "model"))
    assert (ROOT / "services" / (module.replace(".", "/") + ".py")).is_file()
    for name in (section, model):
        assert name is None or name in AlignmentJobSpec.model_fields


def test_groups_of_rewards_and_teachers_have_their_role() -> None:
    groups = ("reward-helpful", "teacher-math", "teacher", "rollout", "prepare", "redis")
    assert [role_of_group(group) for group in groups] == [
        *("reward", "teacher", "teacher", "rollout", "prepare", "redis")
    ]
    process = Process(name="reward-driver-0", role=Role.REWARD, group="reward-driver", module="m")
    assert process.role_spec is ROLE_SPECS["reward"]


def test_preparation_is_a_role_with_the_certificate_of_the_driver() -> None:
    prepare, *_, driver = roles(AlignmentJob.from_yaml(job_template("sft", "example")))
    assert (prepare.role_spec.name, driver.role_spec.name) == ("prepare", "driver")
    assert prepare.role is driver.role is Role.DRIVER


def test_no_reward_may_have_the_name_of_a_scorer() -> None:
    scorers = [name for name in named(compute=ComputePhase.SCORING) if name != Role.REWARD]
    assert set(scorers) <= set(RESERVED_NAMES)


def test_the_chart_accepts_resources_of_every_role_that_runs_in_a_cluster() -> None:
    schema = json.loads((ROOT / "charts/kubealign/values.schema.json").read_text(encoding="utf-8"))
    resources = schema["properties"]["jobs"]["properties"]["defaultResources"]["properties"]
    assert set(resources) == {name for name, spec in ROLE_SPECS.items() if spec.certificate is not None}


def test_the_import_contract_names_every_package_of_a_role() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    listed = re.search(r'Roles communicate on the wire only".*?\]', text, re.DOTALL)
    assert listed is not None
    packages = {str(spec.module).rpartition(".")[0] for spec in PROCESSES}
    assert set(re.findall(r'"(kubealign_services\.roles\.\w+)"', listed[0])) == packages
