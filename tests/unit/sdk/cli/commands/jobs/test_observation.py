"""Commands that observe a running job: logs, samples, top, metrics, wait."""

import asyncio
import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime

from typer.testing import Result

from kubealign.cli.views.log_line import format_log_line
from kubealign.cli.views.process_table import process_table
from kubealign.client.records import JobRef, ProcessRecord, ProcessState
from kubealign.read_model import SampleRecord
from support.memory_backend import MemoryBackend

Run = Callable[..., Result]
Submitted = Callable[..., JobRef]


def test_logs(site: MemoryBackend, run: Run, submitted: Submitted) -> None:
    ref = submitted("ppo")
    site.staff(
        ref,
        ProcessRecord("trainer-0", "trainer", ProcessState.READY),
        ProcessRecord("rollout-0", "rollout", ProcessState.READY),
    )
    site.log(ref, "trainer-0", "one", "two")
    site.log(ref, "rollout-0", "three")
    assert run("logs", "ppo").stdout.splitlines() == ["trainer-0 one", "trainer-0 two", "rollout-0 three"]
    assert run("logs", "ppo", "--role", "rollout").stdout == "rollout-0 three\n"
    assert run("logs", "ppo", "--process", "trainer-0").stdout == "one\ntwo\n"
    assert run("logs", "ppo", "--tail", "1").stdout == "trainer-0 two\nrollout-0 three\n"


def test_logs_of_the_previous_attempt(site: MemoryBackend, run: Run, submitted: Submitted) -> None:
    ref = submitted("ppo")
    site.log(ref, "trainer-0", "now")
    refused = run("logs", "ppo", "--previous")
    assert refused.exit_code == 1 and "has no log of a failed attempt" in refused.stderr
    site.log_previous(ref, "trainer-0", "one", "RuntimeError: x")
    site.log_previous(ref, "rollout-0", "two")
    lines = ["trainer-0 one", "trainer-0 RuntimeError: x", "rollout-0 two"]
    assert run("logs", "ppo", "--previous").stdout.splitlines() == lines
    assert run("logs", "ppo", "-p", "--process", "rollout-0").stdout == "two\n"
    refused = run("logs", "ppo", "--previous", "--follow")
    assert refused.exit_code == 2 and "--previous and --follow exclude each other" in refused.stderr


def test_logs_are_followed_until_the_job_ends(site: MemoryBackend, run: Run, submitted: Submitted) -> None:
    ref = submitted("ppo")
    site.log(ref, "trainer-0", "early")

    def go_on() -> None:
        site.log(ref, "trainer-0", "late")
        site.status(ref, phase="Succeeded")

    timer = threading.Timer(0.3, go_on)
    timer.start()
    done = run("logs", "ppo", "-f")
    timer.join()
    assert done.stdout == "trainer-0 early\ntrainer-0 late\n"


def test_samples_are_oldest_first_and_escaped(site: MemoryBackend, run: Run, submitted: Submitted) -> None:
    ref = submitted("ppo")
    assert run("samples", "ppo").stderr == "No samples of ppo yet.\n"
    for step in (1, 2, 3):
        rewards = {"right": 1.0, "short": -0.5}
        site.sample(
            ref,
            SampleRecord("", step, f"ask {step}", "say \x1b]0;x\x07", 0.5 * step, rewards, step, step == 3),
        )
    text = run("samples", "ppo", "--count", "2").stdout
    assert text.index("ask 2") < text.index("ask 3") and "ask 1" not in text
    assert "say \\x1b]0;x\\x07" in text and "\x1b" not in text
    head = text.splitlines()[0]
    assert head.split() == [
        "step",
        "2",
        "reward",
        "1.000",
        "weights",
        "2",
        "right",
        "1.000",
        "short",
        "-0.500",
    ]
    assert text.count("truncated at maxTokens") == 1
    assert "ask 1" in run("samples", "ppo", "--step", "1").stdout
    assert run("samples", "ppo", "--step", "9").stderr == "No samples of ppo at step 9.\n"
    (value,) = json.loads(run("samples", "ppo", "-c", "1", "-o", "json").stdout)
    assert (value["step"], value["weightVersion"], value["rewards"]["short"]) == (3, 3, -0.5)


def busy(site: MemoryBackend, ref: JobRef) -> None:
    site.status(ref, phase="Running")
    for step in (1, 2):
        site.report(
            ref,
            step,
            {
                "reward/mean": 0.1 * step,
                "seconds/step": 2.0,
                "seconds/generate": 1.5,
                "tokens_per_second": 1500.0,
                "rollout/staleness": 0.0,
            },
        )
    site.report(ref, 2, {"val/exact": 0.25})
    site.staff(ref, ProcessRecord("rollout-0", "rollout", ProcessState.READY, started=datetime.now(UTC)))
    site.say(ref, "rollout-0", weight_version=2, busy_share=0.5, running=4, waiting=9)


def test_top_once(site: MemoryBackend, run: Run, submitted: Submitted) -> None:
    ref = submitted("ppo")
    assert "Pending" in run("top", "ppo", "--once").stdout
    busy(site, ref)
    text = run("top", "ppo", "--once").stdout
    for printed in ("step 2/10", "about 16.0s left", "tokens/s 1,500", "2.00s", "gen 1.50s", "staleness 0"):
        assert printed in text, text
    assert text.splitlines()[-1].split()[3:] == ["2", "50%", "4", "9"]


def test_top_prints_a_line_per_step_without_a_terminal(
    site: MemoryBackend, run: Run, submitted: Submitted
) -> None:
    ref = submitted("ppo")
    busy(site, ref)
    timer = threading.Timer(0.3, lambda: site.status(ref, phase="Failed", message="out of memory"))
    timer.start()
    done = run("top", "ppo")
    timer.join()
    first, last = done.stdout.splitlines()
    assert first.startswith("ppo: step 2/10 reward 0.200")
    assert last == "ppo: Failed 2/10: out of memory"


def test_top_without_metrics_states_the_reason(site: MemoryBackend, run: Run, submitted: Submitted) -> None:
    from kubealign.client.errors import Unavailable

    submitted("ppo")

    async def away(*arguments: object, **named: object) -> None:
        raise Unavailable("there is no dashboard in this cluster")

    site.metrics = away  # type: ignore[method-assign,assignment]
    done = run("top", "ppo", "--once")
    assert done.exit_code == 0
    assert "no metrics: there is no dashboard in this cluster" in done.stdout


def test_metrics(site: MemoryBackend, run: Run, submitted: Submitted) -> None:
    ref = submitted("ppo")
    assert run("metrics", "ppo").stderr == "No metrics of ppo yet.\n"
    busy(site, ref)
    head, first, second = run("metrics", "ppo").stdout.splitlines()
    assert head.split() == ["STEP", "reward/mean", "tokens_per_second", "seconds/step", "val/exact"]
    assert first.split() == ["1", "0.100", "1500.000", "2.000", "-"]
    assert second.split()[-1] == "0.250"
    assert run("metrics", "ppo", "-f", "val/*", "-o", "csv").stdout == "step,val/exact\n1,\n2,0.25\n"
    assert json.loads(run("metrics", "ppo", "--last", "1", "-o", "json").stdout)[0]["seconds/generate"] == 1.5
    done = run("metrics", "ppo", "--figure", "reward/men")
    assert done.exit_code == 1
    assert "the job has no metric reward/men: did you mean reward/mean?" in done.stderr


def test_wait(site: MemoryBackend, run: Run, submitted: Submitted) -> None:
    ref = submitted("ppo")
    done = run("wait", "ppo", "--timeout", "0.2s")
    assert done.exit_code == 124
    assert "ppo" in done.stderr and "Pending" in done.stderr
    timer = threading.Timer(0.3, lambda: site.status(ref, phase="Succeeded"))
    timer.start()
    done = run("wait", "ppo", "--timeout", "1m")
    timer.join()
    assert (done.exit_code, done.stdout) == (0, "ppo: Pending\nppo: Succeeded\n")
    site.status(submitted("sft"), phase="Failed", message="the loss is NaN")
    done = run("wait", "sft", "-q")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "the loss is NaN" in done.stderr
    assert run("wait", "sft", "--for", "Failed").exit_code == 0
    assert run("wait", "ppo", "--timeout", "soon").exit_code == 2
    asyncio.run(site.delete(ref))
    assert run("wait", "ppo").exit_code == 1


def test_log_event_is_formatted_as_text() -> None:
    event = {
        "time": "2026-01-01T00:00:00Z",
        "level": "warning",
        "process": "driver",
        "message": "slow \x1b[2J",
        "logger": "a",
        "step": 3,
        "metrics": dict.fromkeys(map(str, range(50)), 1.0),
    }
    text = format_log_line(json.dumps(event)).plain
    assert text[8:] == " warning: slow \\x1b[2J  step=3  metrics=(50 entries)"
    assert format_log_line("{no json").plain == "{no json"
    assert format_log_line('{"a": 1}').plain == '{"a": 1}'
    assert format_log_line('{"message": "m"}').plain == "m"


def test_process_table_shows_heartbeats() -> None:
    says = {"last_error": "no room", "quarantined": True, "waiting_for": "", "computing": "Save"}
    process = ProcessRecord("a", "rollout", ProcessState.READY, says=says, silent_seconds=30.0)
    (row,) = [list(column.cells) for column in process_table([process]).columns if column.header == "MESSAGE"]
    assert row == ["no heartbeat for 30s; quarantined: its last refit failed; last error: no room; Save"]
    headings = [
        column.header for column in process_table([ProcessRecord("a", "x", ProcessState.WAITING)]).columns
    ]
    assert headings == ["PROCESS", "STATE"]
