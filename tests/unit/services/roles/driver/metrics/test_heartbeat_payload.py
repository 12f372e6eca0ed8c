"""Heartbeat payload of the driver."""

import asyncio
import time
from pathlib import Path

from kubealign.process_settings import RedisAccess
from kubealign.v1 import rollout_pb2
from kubealign_services.messaging.memory import MemoryBus
from kubealign_services.roles.driver.metrics.progress import ProgressTracker, heartbeat_payload
from kubealign_services.roles.driver.metrics.report import MetricsReport
from kubealign_services.roles.driver.rollouts.collector import RolloutCollector, create_group
from kubealign_services.roles.driver.rollouts.group_tracker import GroupTracker
from kubealign_services.telemetry.read_model_writer import ReadModelWriter


async def nothing() -> None:
    return


async def test_payload_has_outstanding_requests_and_the_latest_step(tmp_path: Path) -> None:
    read_model = ReadModelWriter(RedisAccess(host="127.0.0.1", port=1, user="-", password="-", prefix="-"))
    progress = ProgressTracker(10, read_model)
    progress.report_attempt(3)
    progress.report_step(4)
    exchange = RolloutCollector(MemoryBus(), 3, asyncio.Event(), progress.report_wait)
    ledger = GroupTracker(3, "train", ("exact",))
    exchange.register(ledger, nothing)
    for name in ("0/1", "0/2"):
        ledger.add(create_group(name, samples=2, min_version=4, timeout=60))
    ledger.add_rollout(
        rollout_pb2.Rollout(fence=3, group_id="0/1", sample=0, purpose="train"), time.monotonic()
    )
    report = MetricsReport(tmp_path / "metrics.jsonl", 3, [])
    with report.measure_step(4) as step:
        step.add({"rollout/staleness": 0.5, "seconds/refit": 0.25, "refit/bytes": 1000.0})
    payload = heartbeat_payload(progress, exchange, report)
    assert payload.pop("step_seconds") >= 0
    assert payload.pop("seconds_since_step") >= 0
    assert payload == {
        "step": 4,
        "fence": 3,
        "weight_version": 4,
        "waiting_for": "",
        "groups_in_flight": 2,
        "groups_waiting": 0,
        "samples_in_flight": 3,
        "scores_in_flight": 1,
        "staleness": 0.5,
        "refit_seconds": 0.25,
        "refit_bytes": 1000.0,
    }
