"""Commands that list jobs: list, get, describe, events."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
import yaml
from typer.testing import Result

from kubealign.client.errors import Forbidden
from kubealign.client.records import JobEvent, JobRef, ProcessRecord, ProcessState
from support.memory_backend import MemoryBackend

Run = Callable[..., Result]
Submitted = Callable[..., JobRef]


def columns(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_job_table(site: MemoryBackend, run: Run, submitted: Submitted) -> None:
    ppo = submitted("ppo")
    submitted("sft")
    site.status(ppo, phase="Running", message="waits\nfor a worker")
    site.report(ppo, 3, {"reward/mean": 0.25, "kl/reference": 0.0001})
    done = run("list")
    assert done.exit_code == 0, done.output
    head, first, second = done.stdout.splitlines()
    assert head.split() == ["NAME", "PHASE", "STEP", "REWARD", "KL", "AGE", "MESSAGE"]
    assert first.split()[:5] == ["ppo", "Running", "3/10", "0.250", "1.00e-04"]
    assert first.endswith("waits for a worker")
    assert second.split()[:5] == ["sft", "Pending", "0/10", "-", "-"]
    site.status(ppo, maxSteps=None)
    assert columns(run("list").stdout)[1][2] == "3/?"
    assert first.index("Running") == second.index("Pending") == head.index("PHASE")
    assert "\x1b" not in done.output and not any(line.endswith(" ") for line in done.stdout.splitlines())


def test_wide_table_and_all_namespaces(run: Run, submitted: Submitted) -> None:
    submitted("sft", namespace="team-a")
    submitted("ppo")
    assert columns(run("ls", "-A", "-o", "wide").stdout)[0][:2] == ["NAMESPACE", "NAME"]
    assert [row[:2] for row in columns(run("list", "-A").stdout)[1:]] == [
        ["default", "ppo"],
        ["team-a", "sft"],
    ]
    assert [row[0] for row in columns(run("list", "-n", "team-a").stdout)[1:]] == ["sft"]


def test_list_filters(site: MemoryBackend, run: Run, submitted: Submitted) -> None:
    submitted("sft", team="math")
    site.status(submitted("ppo", team="math"), phase="Running")
    submitted("grpo")

    def names(*options: str) -> list[str]:
        return [line.rpartition("/")[2] for line in run("list", "-o", "name", *options).stdout.splitlines()]

    assert names() == ["grpo", "ppo", "sft"]
    assert names("-l", "team=math") == ["ppo", "sft"]
    assert names("--phase", "running") == ["ppo"]
    assert names("--algorithm", "grpo", "--algorithm", "sft") == ["grpo", "sft"]
    assert names("--search", "RP") == ["grpo"]
    assert names("--limit", "2") == ["grpo", "ppo"]
    assert names("--sort", "-created", "--limit", "1") != []


def test_every_page_is_read(
    site: MemoryBackend, run: Run, submitted: Submitted, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        submitted("sft", namespace=f"team-{number}")
    monkeypatch.setattr("kubealign.cli.commands.jobs.list_jobs._PAGE_SIZE", 2)
    assert len(run("list", "-A", "-o", "name").stdout.splitlines()) == 5


def test_lists_as_documents(run: Run, submitted: Submitted) -> None:
    submitted("sft")
    for read, form in ((json.loads, "json"), (yaml.safe_load, "yaml")):
        document = read(run("list", "-o", form).stdout)
        assert document["kind"] == "AlignmentJobList"
        assert document["apiVersion"] == "kubealign.dev/v1alpha1"
        assert document["items"][0]["spec"]["maxSteps"] == 10
        assert read(run("get", "sft", "-o", form).stdout)["metadata"]["name"] == "sft"
    assert run("list", "-n", "empty", "-o", "json").stdout.count('"items": []') == 1


def test_empty_lists_print_a_message(run: Run, site: MemoryBackend) -> None:
    done = run("list", "-n", "empty")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "No jobs in namespace empty.\n")
    assert run("list", "-A", "-l", "a=b").stderr == "No such jobs in any namespace.\n"


def test_wrong_options_are_usage_errors(run: Run, site: MemoryBackend) -> None:
    for options, expected in (
        (["--phase", "Runing"], "'Runing' is not a phase: it must be one of Pending"),
        (["-l", "a b c"], "cannot be parsed"),
        (["--local", "--context", "x"], "remove one"),
        (["--sort", "size"], "'size'"),
    ):
        done = run("list", *options)
        assert done.exit_code == 2, done.output
        assert expected in done.stderr


def test_errors_are_one_line(site: MemoryBackend, run: Run) -> None:
    done = run("get", "nobody")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == "there is no job nobody in namespace default\n"
    site.failing = Forbidden("you may not list alignmentjobs in namespace default")
    done = run("list")
    assert (done.exit_code, done.stderr) == (1, "you may not list alignmentjobs in namespace default\n")


def test_describe(site: MemoryBackend, run: Run, submitted: Submitted) -> None:
    ref = submitted("ppo", team="math")
    now = datetime.now(UTC)
    site.status(
        ref,
        phase="Running",
        startTime=(now - timedelta(minutes=20)).isoformat(),
        conditions=[
            {
                "type": "Ready",
                "status": "False",
                "reason": "Starting",
                "message": "rollout-0 loads",
                "lastTransitionTime": now.isoformat(),
            }
        ],
    )
    site.staff(
        ref, ProcessRecord("rollout-0", "rollout", ProcessState.READY, 2, where="pid 7", silent_seconds=40.0)
    )
    site.say(ref, "rollout-0", weight_version=3, tokens_per_second=1234.5, running=8, waiting=0)
    site.happen(ref, JobEvent(now - timedelta(minutes=5), "Warning", "Restarted", "bad \x1b[2Jnews", 3))
    text = run("describe", "ppo").stdout
    assert "\x1b" not in text and "bad \\x1b[2Jnews" in text
    for expected in (
        "team=math",
        "20m",
        "rollout-0 loads",
        "5m (x3)",
        "no heartbeat for 40s",
        "1,234",
        "pid 7",
    ):
        assert expected in text
    assert text.splitlines()[-1].startswith("  ") and "helpful" in text


def test_events_as_a_table_and_as_json(site: MemoryBackend, run: Run, submitted: Submitted) -> None:
    ref = submitted("sft")
    assert run("events", "sft").stderr == "No events of sft.\n"
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    site.happen(ref, JobEvent(moment, "Normal", "Started", "by process 1"))
    assert columns(run("events", "sft").stdout)[1][1:] == ["Normal", "Started", "by", "process", "1"]
    (event,) = json.loads(run("events", "sft", "-o", "json").stdout)
    assert (event["time"], event["count"]) == ("2026-01-02T00:00:00+00:00", 1)
