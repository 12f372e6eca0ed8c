"""Processes of each kind of job."""

from collections.abc import Callable
from typing import Any

import pytest

from kubealign.process_settings import Role
from kubealign.roles import Process, generation_role, roles, rollout_worker, with_replica, worker_name
from kubealign.spec.job import AlignmentJob
from kubealign.spec.sections.models import Model
from kubealign.spec.sections.rewards import MAX_SHARDED_NAME

Make = Callable[..., dict[str, Any]]

TEACHERS = [
    {"name": "math", "model": {"path": "/m"}, "replicas": 2},
    {"name": "verse", "model": {"path": "/v"}},
]
SOURCES = [
    {"name": "sums", "source": {"path": "a.jsonl"}, "teacher": "math"},
    {"name": "poems", "source": {"path": "b.jsonl"}, "teacher": "verse"},
]
#: A job with several teachers: changes of the small job of rloo.
SEVERAL_TEACHERS = {
    "spec.algorithm": {"onPolicyDistillation": {}},
    "spec.teachers": TEACHERS,
    "spec.data": {"prompts": {"mixture": SOURCES}},
    "spec.rewards": [],
}
VALIDATION = {
    "data": {"prompts": {"source": {"path": "x"}}},
    "sampling": {"scores": [{"name": "short", "function": {"module": "a:b"}}]},
}


def names(document: dict[str, Any]) -> list[str]:
    return [process.name for process in roles(AlignmentJob.model_validate(document))]


@pytest.mark.parametrize(
    ("algorithm", "changes", "expected"),
    [
        ("sft", {}, "prepare trainer-0 driver"),
        ("rewardModel", {"spec.trainer.ranks": 2}, "prepare trainer-0 trainer-1 driver"),
        ("ppo", {}, "prepare trainer-0 critic-0 reference-0 reward-helpful-0 rollout-0 driver"),
        (
            "ppo",
            {"spec.critic.ranks": 2, "spec.rollout.replicas": 3},
            "prepare trainer-0 critic-0 critic-1 reference-0 reward-helpful-0 "
            "rollout-0 rollout-1 rollout-2 driver",
        ),
        (
            "ppo",
            {"spec.reference": {"placement": "WithTrainer"}, "spec.rewards.0.placement": "WithCritic"},
            "prepare trainer-0 critic-0 rollout-0 driver",
        ),
        (
            "ppo",
            {"spec.algorithm.ppo.kl": {"fixed": {"coefficient": 0}}},
            "prepare trainer-0 critic-0 reward-helpful-0 rollout-0 driver",
        ),
        (
            "ppo",
            {"spec.algorithm.ppo.kl": {"adaptive": {}}},
            "prepare trainer-0 critic-0 reference-0 reward-helpful-0 rollout-0 driver",
        ),
        (
            "ppo",
            {"spec.reference": {"replicas": 3}, "spec.rewards.0.replicas": 2},
            "prepare trainer-0 critic-0 reference-0 reference-1 reference-2 "
            "reward-helpful-0 reward-helpful-1 rollout-0 driver",
        ),
        ("rloo", {}, "prepare trainer-0 reference-0 reward-exact-0 rollout-0 driver"),
        (
            "grpo",
            {"spec.validation": VALIDATION},
            "prepare trainer-0 reward-exact-0 reward-short-0 rollout-0 driver",
        ),
        (
            "grpo",
            {"spec.algorithm.grpo.kl": {"fixed": {"coefficient": 0.04}}},
            "prepare trainer-0 reference-0 reward-exact-0 rollout-0 driver",
        ),
        (
            "rloo",
            {"spec.trainer.ranks": 2, "spec.rollout": {"placement": "WithTrainer", "replicas": 2}},
            "prepare trainer-0 trainer-1 reference-0 reward-exact-0 driver",
        ),
        (
            "rloo",
            SEVERAL_TEACHERS,
            "prepare trainer-0 teacher-math-0 teacher-math-1 teacher-verse-0 rollout-0 driver",
        ),
        (
            "sft",
            {"spec.validation": VALIDATION, "spec.rollout.replicas": 2},
            "prepare trainer-0 reward-short-0 rollout-0 rollout-1 driver",
        ),
        (
            "sft",
            {"spec.validation": {"data": {"demonstrations": {"source": {"path": "x"}}}}},
            "prepare trainer-0 driver",
        ),
    ],
)
def test_the_processes_of_a_job(
    algorithm: str, changes: dict[str, Any], expected: str, document: Make
) -> None:
    assert names(document(algorithm, changes)) == expected.split()


def test_the_processes_of_several_teachers(document: Make) -> None:
    job = AlignmentJob.model_validate(document("rloo", SEVERAL_TEACHERS))
    processes = {process.name: process for process in roles(job)}
    assert processes["teacher-math-1"] == Process(
        "teacher-math-1",
        Role.TEACHER,
        "teacher-math",
        "kubealign_services.roles.teacher.main",
        replica=1,
        teacher="math",
        after=("prepare",),
        elastic=True,
    )
    assert processes["teacher-math-1"].role_spec.name == "teacher"
    assert processes["driver"].after == (
        "prepare", "trainer", "teacher-math", "teacher-verse", "rollout"
    )  # fmt: skip
    assert job.spec.effective_reference is None


def test_all_fields_of_the_processes(document: Make) -> None:
    job = AlignmentJob.model_validate(
        document("ppo", {"spec.trainer.ranks": 2, "spec.validation": VALIDATION})
    )
    processes = {process.name: process for process in roles(job)}
    assert processes["prepare"] == Process(
        "prepare",
        Role.DRIVER,
        "prepare",
        "kubealign_services.roles.driver.prepare",
        one_shot=True,
        serves=False,
    )
    assert processes["trainer-1"] == Process(
        "trainer-1",
        Role.TRAINER,
        "trainer",
        "kubealign_services.roles.trainer.main",
        rank=1,
        world_size=2,
        after=("prepare",),
    )
    # Each trainer rank serves its part of the weights; the critic sends no weights.
    assert all(process.serves == (process.rank == 0) for process in roles(job) if process.group == "critic")
    assert processes["reward-short-0"] == Process(
        "reward-short-0",
        Role.REWARD,
        "reward-short",
        "kubealign_services.roles.reward.main",
        reward="short",
        after=("prepare",),
        elastic=True,
    )
    assert (processes["rollout-0"],) == rollout_worker(job.spec, 0)
    assert processes["rollout-0"].calls == ("trainer",)
    assert processes["driver"] == Process(
        "driver",
        Role.DRIVER,
        "driver",
        "kubealign_services.roles.driver.main",
        after=("prepare", "trainer", "critic", "reference", "reward-helpful", "reward-short", "rollout"),
        calls=("trainer", "critic"),
    )


def test_each_replica_of_a_scorer_is_a_unit(document: Make) -> None:
    """The number of processes of one scorer does not change the first one, nor any other process."""
    changes = {"spec.reference": {"replicas": 2}, "spec.rewards.0.replicas": 2}
    processes = {p.name: p for p in roles(AlignmentJob.model_validate(document("ppo", changes)))}
    alone = {p.name: p for p in roles(AlignmentJob.model_validate(document("ppo")))}
    assert {name: process for name, process in processes.items() if name in alone} == alone
    for group, reward in (("reference", None), ("reward-helpful", "helpful")):
        second = processes[f"{group}-1"]
        assert second == with_replica(alone[f"{group}-0"], 1)
        assert (second.unit, second.leader, second.replica) == (f"{group}-1", f"{group}-1", 1)
        assert (second.reward, second.elastic, second.serves, second.world_size) == (reward, True, True, 1)


def test_each_replica_of_a_sharded_scorer_is_a_unit_of_ranks(document: Make) -> None:
    """Rank 0 alone serves, under the name that the replica has without ranks."""
    changes = {
        "spec.reference": {"replicas": 2, "ranks": 2},
        "spec.rewards.0.ranks": 3,
    }
    processes = {p.name: p for p in roles(AlignmentJob.model_validate(document("ppo", changes)))}
    for group, replicas, ranks in (("reference", 2, 2), ("reward-helpful", 1, 3)):
        members = [process for process in processes.values() if process.group == group]
        assert [process.name for process in members] == [
            f"{group}-{replica}" + (f"-r{rank}" if rank else "")
            for replica in range(replicas)
            for rank in range(ranks)
        ]
        for process in members:
            unit = f"{group}-{process.replica}"
            assert (process.unit, process.leader, process.world_size) == (unit, unit, ranks)
            assert (process.serves, process.elastic) == (process.rank == 0, True)
    assert {process.reward for process in processes.values() if process.group == "reward-helpful"} == {
        "helpful"
    }


def test_a_reward_with_ranks_has_names_that_fit_in_a_dns_label(document: Make) -> None:
    """Check the longest name with the most replicas and ranks."""
    name = "a" * MAX_SHARDED_NAME
    reward = {"name": name, "model": {"path": "r"}, "replicas": 1024, "ranks": 1024}
    job = AlignmentJob.model_validate(document("ppo", {"spec.rewards": [reward]}))
    assert job.spec.rewards[0].ranks == 1024
    assert len(worker_name(f"reward-{name}", 1023, 1023)) == 63


def test_a_teacher_has_replicas_and_ranks(document: Make) -> None:
    changes = {
        "spec.algorithm": {"distillation": {}},
        "spec.teacher": {"model": {"path": "t"}, "replicas": 2},
    }
    assert names(document("sft", changes)) == ["prepare", "trainer-0", "teacher-0", "teacher-1", "driver"]
    changes["spec.teacher"] |= {"ranks": 2, "replicas": 1}
    assert names(document("sft", changes)) == ["prepare", "trainer-0", "teacher-0", "teacher-0-r1", "driver"]


def test_a_worker_of_several_processes(document: Make) -> None:
    """Rank 0 serves and has the worker's name; each worker is one unit with its own rendezvous."""
    shared = {"engine": {"torch": {"tensorParallel": 3}}, "replicas": 2}
    job = AlignmentJob.model_validate(document("rloo", {"spec.rollout": shared, "spec.trainer.ranks": 2}))
    workers = [process for process in roles(job) if process.group == "rollout"]
    assert [process.name for process in workers] == [
        f"rollout-{worker}{rank}" for worker in (0, 1) for rank in ("", "-r1", "-r2")
    ]
    assert [process.unit for process in workers] == ["rollout-0"] * 3 + ["rollout-1"] * 3
    assert [process.leader for process in workers] == ["rollout-0"] * 3 + ["rollout-1"] * 3
    assert [process.rank for process in workers] == [0, 1, 2] * 2
    assert [process.serves for process in workers] == [True, False, False] * 2
    assert {(process.world_size, process.elastic, process.role) for process in workers} == {
        (3, True, Role.ROLLOUT)
    }
    assert rollout_worker(job.spec, 1) == tuple(workers[3:])
    assert tuple(with_replica(process, 1) for process in workers[:3]) == tuple(workers[3:])
    others = {each.name: (each.unit, each.leader) for each in roles(job) if each not in workers}
    assert others["trainer-1"] == ("trainer", "trainer-0")
    assert others["reward-exact-0"] == ("reward-exact-0", "reward-exact-0")
    assert others["driver"] == ("driver", "driver")


def test_rollout_workers_in_the_trainers_processes(document: Make) -> None:
    def rollout_processes(**rollout: Any) -> tuple[Process, ...]:
        return roles(AlignmentJob.model_validate(document("rloo", {"spec.rollout": rollout})))

    assert generation_role(rollout_processes()) is Role.ROLLOUT
    shared = rollout_processes(placement="WithTrainer")
    assert generation_role(shared) is Role.TRAINER
    (trainer,) = (process for process in shared if process.group == "trainer")
    assert (trainer.module, trainer.role) == ("kubealign_services.roles.colocated.main", Role.TRAINER)
    assert next(p for p in shared if p.name == "driver").after == (
        "prepare",
        "trainer",
        "reference",
        "reward-exact",
    )


@pytest.mark.parametrize("algorithm", ["sft", "rewardModel", "ppo", "rloo", "grpo"])
def test_processes_follow_the_groups_they_wait_for(algorithm: str, document: Make) -> None:
    job = AlignmentJob.model_validate(document(algorithm, {"spec.trainer.ranks": 3}))
    groups: set[str] = set()
    for process in roles(job):
        assert set(process.after) <= groups
        assert set(process.calls) <= groups | {process.group}
        groups.add(process.group)
    assert len({process.name for process in roles(job)}) == len(roles(job))
    serving = [process.rank for process in roles(job) if process.group == "trainer" and process.serves]
    assert serving == ([0, 1, 2] if job.spec.samples else [0])


def test_effective_fields_have_defaults(document: Make) -> None:
    spec = AlignmentJob.model_validate(document("ppo")).spec
    assert spec.samples and spec.uses_reference
    assert spec.effective_critic is not None and spec.effective_critic.model == Model(path="reward")
    assert spec.effective_reference is not None and spec.effective_reference.model == Model(path="policy")
    assert spec.effective_rollout is not None and spec.effective_rollout.replicas == 1

    offline = AlignmentJob.model_validate(document("sft")).spec
    assert not offline.samples and not offline.uses_reference
    assert (offline.effective_critic, offline.effective_reference, offline.effective_rollout) == (None,) * 3

    changes = {
        "spec.critic": {"model": {"path": "c"}, "ranks": 2},
        "spec.reference": {"model": {"path": "r"}},
    }
    given = AlignmentJob.model_validate(document("ppo", changes)).spec
    assert given.critic is not None and given.effective_critic is not None
    assert (given.effective_critic.model, given.effective_critic.ranks) == (given.critic.model, 2)
    assert given.effective_reference == given.reference


def test_the_critic_is_initialised_from_the_first_model_reward(document: Make) -> None:
    rewards: list[dict[str, Any]] = [
        {"name": "format", "function": {"module": "a:b"}},
        {"name": "first", "model": {"path": "first"}},
        {"name": "second", "model": {"path": "second"}},
    ]
    spec = AlignmentJob.model_validate(
        document("ppo", {"spec.rewards": rewards, "spec.critic.ranks": 2})
    ).spec
    assert spec.effective_critic is not None
    assert spec.effective_critic.model == Model(path="first")
    assert spec.effective_critic.ranks == 2
    assert spec.critic_head_attributes == {}
    rewards[1]["attributes"] = {"kind": 2.0}
    weighted = {"spec.rewards": rewards}
    spec = AlignmentJob.model_validate(document("ppo", weighted)).spec
    assert spec.critic_head_attributes == {"kind": 2.0}
    named = weighted | {"spec.critic": {"model": {"path": "first"}}}
    assert AlignmentJob.model_validate(document("ppo", named)).spec.critic_head_attributes is None


def test_scorers_by_name(document: Make) -> None:
    spec = AlignmentJob.model_validate(document("grpo", {"spec.validation": VALIDATION})).spec
    assert spec.scorer("exact") is spec.rewards[0]
    assert spec.scorer("short") is spec.validation_scores[0]
    with pytest.raises(
        LookupError, match=r"no reward or validation score long; there are \['exact', 'short'\]"
    ):
        spec.scorer("long")


def test_the_rollout_workers_answer_the_questions_of_a_policy_judge(document: Make) -> None:
    judged = {"policyJudge": {"task": {"pointwise": {}}}}
    scores = [*VALIDATION["sampling"]["scores"], {"name": "liked", **judged}]
    validation = VALIDATION | {"sampling": {"scores": scores}}
    changes = {"spec.rewards": [{"name": "own", **judged}], "spec.validation": validation}
    processes = names(document("rloo", changes))
    assert [name for name in processes if name.startswith("reward")] == ["reward-short-0"]
