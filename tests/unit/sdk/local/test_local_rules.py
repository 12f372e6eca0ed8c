"""Pure rules of the local runner: spec changes, backoff, threads, messages."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubealign.library_environment import library_environment
from kubealign.local.display.metric_lines import format_seconds, format_step
from kubealign.local.errors import RunRefused
from kubealign.local.processes.cpu import compute_threads, computes_in_turns, should_yield_cpu
from kubealign.local.processes.exit_status import describe_exit
from kubealign.local.processes.log_tail import read_log_tail
from kubealign.local.processes.preload_modules import modules_to_preload
from kubealign.local.run_dir.spec_diff import forbidden_changes
from kubealign.local.runner.dry_run import describe_plan
from kubealign.local.runner.scaling import plan_scaling
from kubealign.process_settings import Role
from kubealign.read_model import StepMetrics
from kubealign.roles import roles
from kubealign.spec.job import AlignmentJob

PPO = """
apiVersion: kubealign.dev/v1alpha1
kind: AlignmentJob
metadata: {name: aligned}
spec:
  maxSteps: 90
  algorithm: {ppo: {}}
  policy: {model: {job: {name: tuned}}}
  data: {prompts: {source: {path: /data/prompts.jsonl}, format: {text: {}}}}
  rewards: [{name: helpful, model: {job: {name: judge}}}]
  rollout: {replicas: 2, minReplicas: 2}
"""
CHECK = "function: {file: {path: /reward.py, name: reward}}"


@pytest.fixture
def ppo() -> AlignmentJob:
    return AlignmentJob.from_yaml(PPO)


def with_spec(text: str, *pairs: tuple[str, str]) -> AlignmentJob:
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    return AlignmentJob.from_yaml(text)


@pytest.mark.parametrize(
    ("change", "differing"),
    [
        (("maxSteps: 90", "maxSteps: 91"), []),
        (("maxSteps: 90", "maxSteps: 89"), ["spec.maxSteps (90, now 89)"]),
        (("ppo: {}", "ppo: {maxEpochs: 2}"), ["spec.algorithm.ppo.maxEpochs (not set, now 2)"]),
        (("replicas: 2, minReplicas: 2", "replicas: 5, minReplicas: 1"), []),
        (("ppo: {}", "ppo: {promptsPerStep: 32}"), ["spec.algorithm.ppo.promptsPerStep (64, now 32)"]),
        (("ppo: {}", "ppo: {gae: {lambda: 0.9}}"), ["spec.algorithm.ppo.gae.lambda (1.0, now 0.9)"]),
        # The default values written out, as another version of kubealign stores them.
        (
            ("rollout: {", "trainer: {optimizer: {adamW: {learningRate: 1.0e-6}}}\n  rollout: {"),
            [],
        ),
        (("rollout: {", "rollout: {engine: {torch: {precision: Float32}}, "), []),
        (
            ("rollout: {", "critic: {optimizer: {adamW: {learningRate: 1.0e-6}}}\n  rollout: {"),
            ["spec.critic.optimizer.adamW.learningRate (1e-05, now 1e-06)"],
        ),
        (("name: helpful", "name: kind"), ["spec.rewards[0].name (helpful, now kind)"]),
        (("name: helpful", "replicas: 2, name: helpful"), []),
        # A reference that is left to its default is one in a process of its own.
        (("rollout: {", "reference: {replicas: 2}\n  rollout: {"), []),
        (
            ("rollout: {", "reference: {placement: WithTrainer}\n  rollout: {"),
            ["spec.reference.placement (Own, now WithTrainer)"],
        ),
        (("{name: aligned}", "{name: aligned, labels: {queue: a}}"), []),
        (("maxSteps: 90", "maxSteps: 90\n  lifecycle: {maxRestarts: 0}"), []),
        (("maxSteps: 90", "maxSteps: 90\n  checkpoint: {keep: 9}"), []),
        (("/data/prompts", "/elsewhere/prompts"), None),
    ],
)
def test_allowed_spec_changes_between_runs(ppo: AlignmentJob, change, differing) -> None:
    result = forbidden_changes(ppo, with_spec(PPO, change))
    if differing is None:
        assert len(result) == 1
        assert result[0].startswith(
            "spec.data.prompts.source.path (/data/prompts.jsonl, now /elsewhere/prompts"
        )
    else:
        assert result == differing


def test_the_processes_of_one_of_several_teachers_may_change_between_runs() -> None:
    sources = "{mixture: [{name: sums, source: {path: /data/prompts.jsonl}, teacher: math}]}"
    before = with_spec(
        PPO,
        ("algorithm: {ppo: {}}", "algorithm: {onPolicyDistillation: {}}"),
        ("{source: {path: /data/prompts.jsonl}, format: {text: {}}}", sources),
        (
            "rewards: [{name: helpful, model: {job: {name: judge}}}]",
            "teachers: [{name: math, model: {path: /m}}]",
        ),
    )
    document = before.model_dump(mode="json", by_alias=True)
    teacher = document["spec"]["teachers"][0]
    teacher["replicas"] = 3
    assert forbidden_changes(before, AlignmentJob.model_validate(document)) == []
    teacher["model"]["path"] = "/other"
    (change,) = forbidden_changes(before, AlignmentJob.model_validate(document))
    assert change == "spec.teachers[0].model.path (/m, now /other)"


@pytest.mark.parametrize(
    ("length", "differing"),
    [
        (("maxEpochs: 2", "maxEpochs: 3"), []),
        (("maxEpochs: 2", "maxEpochs: 1"), ["spec.algorithm.ppo.maxEpochs (2, now 1)"]),
        # Without a limit of its own, the job is longer.
        (("  maxSteps: 90\n", ""), []),
        (("{maxEpochs: 2}", "{}"), []),
    ],
)
def test_a_job_may_only_become_longer(length: tuple[str, str], differing: list[str]) -> None:
    text = PPO.replace("ppo: {}", "ppo: {maxEpochs: 2}")
    before, after = AlignmentJob.from_yaml(text), with_spec(text, length)
    assert forbidden_changes(before, after) == differing


def test_a_limit_of_the_steps_is_no_longer_job() -> None:
    text = PPO.replace("ppo: {}", "ppo: {maxEpochs: 2}")
    before = with_spec(text, ("  maxSteps: 90\n", ""))
    assert forbidden_changes(before, AlignmentJob.from_yaml(text)) == ["spec.maxSteps (not set, now 90)"]


@pytest.mark.parametrize(
    ("paths", "differing"),
    [
        ("[/data/b.jsonl, /data/a.jsonl]", ["paths[0] (/data/a.jsonl, now /data/b.jsonl)", "paths[1] (/d"]),
        ("[/data/a.jsonl]", ["paths (['/data/a.jsonl', '/data/b.jsonl'], now ['/data/a.jsonl'])"]),
    ],
)
def test_a_changed_list_of_files_is_a_forbidden_change(paths: str, differing: list[str]) -> None:
    one = "path: /data/prompts.jsonl"
    before = with_spec(PPO, (one, "paths: [/data/a.jsonl, /data/b.jsonl]"))
    changes = forbidden_changes(before, with_spec(PPO, (one, f"paths: {paths}")))
    assert len(changes) == len(differing)
    for change, start in zip(changes, differing, strict=True):
        assert change.startswith(f"spec.data.prompts.source.{start}")


def test_identical_specs_have_no_forbidden_changes(ppo: AlignmentJob) -> None:
    assert forbidden_changes(ppo, AlignmentJob.model_validate_json(ppo.model_dump_json(by_alias=True))) == []


def test_concurrent_processes_share_the_cores(ppo: AlignmentJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    processes = roles(ppo)
    share = {process.name: compute_threads(process, processes, cores=8) for process in processes}
    assert share == {
        "prepare": 8,
        # Trainer and critic train at the same time: 8 / 2.
        "trainer-0": 4,
        "critic-0": 4,
        # 2 rollout workers, the reference and one reward overlap: 8 / 4; rollout: 8 / 2.
        "reference-0": 2,
        "reward-helpful-0": 2,
        "rollout-0": 4,
        "rollout-1": 4,
        "driver": 8,
    }
    assert {compute_threads(process, processes, cores=1) for process in processes} == {1}


@pytest.mark.parametrize(
    ("value", "most"), [("2", 2), (" 3,1", 3), ("", 8), ("16", 8), ("many", 8), ("0", 8)]
)
def test_threads_are_bounded_by_omp_num_threads(
    ppo: AlignmentJob, value: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes = roles(ppo)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    share = {process.name: compute_threads(process, processes, cores=8) for process in processes}
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    assert {process.name: compute_threads(process, processes, cores=8) for process in processes} == {
        name: min(most, own) for name, own in share.items()
    }


def test_processes_compute_in_turns_unless_phases_overlap(ppo: AlignmentJob) -> None:
    """Overlapping phases make waiting threads spin longer before they sleep."""
    assert not computes_in_turns(ppo)  # a reference and a reward model score during generation
    messages = ppo.model_dump(mode="json", by_alias=True, exclude_none=True)
    even = {"name": "even", "function": {"file": {"path": "/reward.py", "name": "reward"}}}
    spec = {name: messages["spec"][name] for name in ("policy", "data", "maxSteps")} | {"rewards": [even]}
    rloo = {"kl": {"fixed": {"coefficient": 0.0}}}
    for staleness, turns in ((0, True), (2, False)):
        algorithm = {"rloo": {**rloo, "maxStaleness": staleness}}
        job = AlignmentJob.model_validate({**messages, "spec": {**spec, "algorithm": algorithm}})
        assert computes_in_turns(job) is turns
    judges = {"name": "judges", "ensemble": {"models": [{"path": "/one"}, {"path": "/other"}]}}
    spec |= {"rewards": [judges], "algorithm": {"rloo": rloo}}
    assert not computes_in_turns(AlignmentJob.model_validate({**messages, "spec": spec}))
    longer, shorter = (int(library_environment(alone)["GOMP_SPINCOUNT"]) for alone in (True, False))
    assert longer > shorter > 0


def test_processes_beside_rollout_workers_yield_the_cpu(ppo: AlignmentJob) -> None:
    """In an asynchronous job trainer and rollout workers are equally urgent; without overlap no process
    yields.
    """
    behind = with_spec(PPO, ("ppo: {}", "ppo: {maxStaleness: 1}"))
    alone = with_spec(
        PPO, ("ppo: {}", "rloo: {kl: {fixed: {coefficient: 0.0}}}"), ("model: {job: {name: judge}}", CHECK)
    )
    for job, standing_back in (
        (ppo, {"trainer-0", "critic-0", "reference-0", "reward-helpful-0"}),
        (behind, set()),
        (alone, set()),
    ):
        processes = roles(job)
        assert {each.name for each in processes if should_yield_cpu(each, processes, job)} == standing_back
    # Scorers in a job without rollout workers do not yield.
    without = [process for process in roles(ppo) if process.role is not Role.ROLLOUT]
    assert not any(should_yield_cpu(process, without, ppo) for process in without)


def test_new_workers_take_the_lowest_free_numbers(ppo: AlignmentJob) -> None:
    processes = [process for process in roles(ppo) if process.name != "rollout-0"]
    added, removed = plan_scaling(ppo, processes, "rollout", 3)
    assert ([process.name for process in added], removed) == (["rollout-0", "rollout-2"], [])
    assert added[0].calls == ("trainer",) and added[0].elastic
    added, removed = plan_scaling(ppo, [*processes, *added], "rollout", 2)
    assert (added, [process.name for process in removed]) == ([], ["rollout-2"])


def test_scorers_are_scaled_like_rollout_workers(ppo: AlignmentJob) -> None:
    added, removed = plan_scaling(ppo, roles(ppo), "reward-helpful", 2)
    assert ([(process.name, process.reward) for process in added], removed) == (
        [("reward-helpful-1", "helpful")],
        [],
    )
    added, removed = plan_scaling(ppo, [*roles(ppo), *added], "reward-helpful", 1)
    assert (added, [process.name for process in removed]) == ([], ["reward-helpful-1"])
    with pytest.raises(RunRefused, match="replicas of reference is 0: it must be an integer from 1"):
        plan_scaling(ppo, roles(ppo), "reference", 0)


@pytest.mark.parametrize("replicas", [1, 1025, 2.0, True, "3", None])
def test_invalid_replica_counts_are_rejected(ppo: AlignmentJob, replicas: object) -> None:
    with pytest.raises(RunRefused, match="must be an integer from 2 to 1024"):
        plan_scaling(ppo, roles(ppo), "rollout", replicas)


def test_multi_process_worker_is_scaled_as_a_unit() -> None:
    shared = "replicas: 2, engine: {torch: {tensorParallel: 2}}"
    job = with_spec(PPO, ("replicas: 2, minReplicas: 2", shared))
    added, removed = plan_scaling(job, roles(job), "rollout", 3)
    assert ([process.name for process in added], removed) == (["rollout-2", "rollout-2-r1"], [])
    assert [(process.rank, process.serves, process.unit) for process in added] == [
        (0, True, "rollout-2"),
        (1, False, "rollout-2"),
    ]
    added, removed = plan_scaling(job, [*roles(job), *added], "rollout", 1)
    assert added == []
    assert [process.name for process in removed] == ["rollout-1", "rollout-1-r1", "rollout-2", "rollout-2-r1"]


def test_colocated_workers_are_not_scaled() -> None:
    job = with_spec(PPO, ("replicas: 2, minReplicas: 2", "placement: WithTrainer"))
    with pytest.raises(RunRefused, match=r"trainer\.ranks cannot change while the job runs"):
        plan_scaling(job, roles(job), "rollout", 2)


def test_workers_without_servers_of_their_own_are_not_scaled() -> None:
    def scaled(url: str, group: str = "rollout") -> list[str]:
        engine = f"engine: {{openai: {{url: '{url}'}}}}"
        job = with_spec(PPO, ("replicas: 2, minReplicas: 2", engine))
        added, _ = plan_scaling(job, roles(job), group, 2)
        return [process.name for process in added]

    with pytest.raises(RunRefused, match=r"names one server, http://localhost:8000, .*: it must be 1"):
        scaled("http://localhost:8000")
    assert scaled("http://localhost:8000", "reward-helpful") == ["reward-helpful-1"]
    assert scaled("http://localhost:800{worker}") == ["rollout-1"]


@given(st.lists(st.integers(1, 12), min_size=1, max_size=8))
def test_scaling_reaches_the_requested_replica_count(replica_counts: list[int]) -> None:
    job = with_spec(PPO, ("replicas: 2, minReplicas: 2", "replicas: 1"))
    processes = list(roles(job))
    for replicas in replica_counts:
        added, removed = plan_scaling(job, processes, "rollout", replicas)
        assert not (added and removed)
        processes = [process for process in (*processes, *added) if process not in removed]
        names = sorted(process.name for process in processes if process.group == "rollout")
        assert names == sorted(f"rollout-{number}" for number in range(replicas))


def test_format_step_returns_one_line() -> None:
    values = {
        "reward/mean": 0.4125,
        "kl/reference": 0.031,
        "response/length": 7.25,
        "tokens_per_second": 812.4,
        "seconds/generate": 0.6,
        "seconds/score": 0.0,
        "seconds/train": 0.304,
        "policy/entropy": 1.5,
        "val/exact": 0.65,
    }
    line = format_step(StepMetrics("1-0", 12, 1, values), 90)
    assert line == "step 12/90 reward 0.412 kl 0.031 len 7.2 tok/s 812 gen 0.60s train 0.30s val/exact 0.650"
    assert format_step(StepMetrics("1-0", 3, 1, {"rm/loss": 0.5, "rm/accuracy": 0.75}), None) == (
        "step 3 loss 0.500 accuracy 0.750"
    )


def test_short_validation_metric_names_are_preferred() -> None:
    values = {f"val/exact/kind-{number}": 0.5 for number in range(20)} | {"val/exact": 0.25, "val/loss": 2.0}
    line = format_step(StepMetrics("1-0", 0, 1, values), 90)
    assert "val/exact 0.250" in line and "val/loss 2.000" in line
    assert line.count("val/") == 8


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.314, "0.31s"), (12.44, "12.4s"), (185, "3m05s"), (59.99, "60.0s"), (7620, "2h07m")],
)
def test_format_seconds(value: float, expected: str) -> None:
    assert format_seconds(value) == expected


def test_describe_exit() -> None:
    assert describe_exit(3) == "ended with code 3"
    assert describe_exit(-9) == "was killed by SIGKILL"
    assert describe_exit(-77) == "was killed by signal 77"


def test_log_tail_shows_readable_lines_of_the_last_start(tmp_path: Path) -> None:
    log = tmp_path / "trainer-0.log"
    log.write_text("of the start before\n")
    start = log.stat().st_size
    with log.open("a") as file:
        file.write('{"level": "error", "message": "the loss is NaN", "time": 1}\n')
        file.write(
            '{"level": "error", "message": "died", "exception": "Traceback\\nValueError: no"}\nplain\n'
        )
    assert read_log_tail(log, start) == (
        "  error the loss is NaN\n  error died\n  Traceback\n  ValueError: no\n  plain"
    )
    assert read_log_tail(log, log.stat().st_size) == "  (it wrote nothing)"
    assert "cannot be read" in read_log_tail(tmp_path / "none.log")


def test_a_dry_run_names_every_process(ppo: AlignmentJob) -> None:
    lines = list(describe_plan([ppo]))
    assert lines[0] == "aligned: ppo, 90 steps, after judge, tuned"
    rows = {line.split()[0]: line.split(maxsplit=1)[1] for line in lines[1:]}
    assert list(rows) == ["nats", "redis", *(process.name for process in roles(ppo))]
    after = "after prepare, trainer, critic, reference, reward-helpful, rollout"
    assert (
        " ".join(rows["driver"].split())
        == f"kubealign_services.roles.driver.main grpc+tls://127.0.0.1 {after}"
    )
    assert rows["prepare"].split() == ["kubealign_services.roles.driver.prepare", "runs", "once", "first"]


@pytest.mark.parametrize(
    ("max_steps", "length"), [("maxSteps: 90", "90 steps or 3 epochs"), ("", "3 epochs")]
)
def test_a_dry_run_names_the_length(max_steps: str, length: str) -> None:
    job = with_spec(PPO, ("ppo: {}", "ppo: {maxEpochs: 3}"), ("maxSteps: 90", max_steps))
    assert next(describe_plan([job])) == f"aligned: ppo, {length}, after judge, tuned"


def test_fork_server_preloads_model_modules(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    job = with_spec(
        PPO, ("{job: {name: tuned}}", f"{{path: {tmp_path}}}"), ("{job: {name: judge}}", "{path: /nowhere}")
    )
    result = modules_to_preload([job])
    assert "transformers.models.qwen2.modeling_qwen2" in result
    assert result.index("torch") < result.index("kubealign_services.roles.trainer.main")
    assert len(result) == len(set(result))


@pytest.mark.parametrize(("engine", "imported"), [("torch", True), ("tensorrtLLM", False)])
def test_only_workers_with_the_torch_engine_preload_it(engine: str, imported: bool) -> None:
    job = with_spec(PPO, ("rollout: {", f"rollout: {{engine: {{{engine}: {{}}}}, "))
    assert ("kubealign_services.roles.rollout.torch_generator" in modules_to_preload([job])) is imported


@pytest.mark.slow
def test_the_fork_server_does_not_import_bitsandbytes() -> None:
    """Import what is preloaded for a job with a quantised base: after bitsandbytes' calls of CUDA, no forked
    process could use a GPU.
    """
    job = with_spec(PPO, ("spec:\n", "spec:\n  trainer: {lora: {quantization: {nf4: {}}}}\n"))
    assert job.spec.trainer.lora is not None and job.spec.trainer.lora.quantization is not None
    imports = "\n".join(f"import {module}" for module in modules_to_preload([job]))
    program = f"{imports}\nimport sys\nprint('bitsandbytes' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240)
    assert done.stdout.split() == ["False"], done.stderr
