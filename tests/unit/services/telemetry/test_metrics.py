"""Prometheus metrics of a process, and the instrumented bus."""

from prometheus_client import generate_latest

from kubealign_services.messaging.memory import MemoryBus
from kubealign_services.telemetry.instrumented_bus import InstrumentedBus
from kubealign_services.telemetry.metrics import ProcessMetrics


def test_exported_metrics() -> None:
    metrics = ProcessMetrics("sums", "trainer", "trainer-0")
    metrics.observe_rpc("/kubealign.v1.Trainer/TrainStep", "OK", 1.5)
    metrics.observe_rpc("/kubealign.v1.Trainer/TrainStep", "OK", 2.5)
    metrics.engine_tokens.labels("generated").inc(12)
    metrics.train_step_seconds.observe(4.0)
    metrics.set_step({"reward/mean": 0.25, "kl": 1.5})
    metrics.set_step({"reward/mean": 0.5})
    text = generate_latest(metrics.registry).decode()
    labels = '{code="OK",method="kubealign.v1.Trainer/TrainStep"}'
    assert f"kubealign_rpc_seconds_count{labels} 2.0" in text
    assert f"kubealign_rpc_seconds_sum{labels} 4.0" in text
    assert 'kubealign_engine_tokens_total{kind="generated"} 12.0' in text
    assert "kubealign_train_step_seconds_sum 4.0" in text
    assert 'kubealign_step{name="reward/mean"} 0.5' in text
    assert 'kubealign_step{name="kl"} 1.5' in text
    assert 'kubealign_process_info{job="sums",process="trainer-0",role="trainer"} 1.0' in text


def test_processes_do_not_share_a_registry() -> None:
    first, second = ProcessMetrics("a", "rollout", "rollout-0"), ProcessMetrics("a", "rollout", "rollout-1")
    first.engine_tokens.labels("prompt").inc()
    assert b'kind="prompt"' not in generate_latest(second.registry)


async def test_instrumented_bus_counts_messages() -> None:
    metrics = ProcessMetrics("sums", "driver", "driver")
    bus = InstrumentedBus(MemoryBus(), metrics.bus_messages, metrics.bus_messages_lost)
    for index in range(4):
        await bus.publish("work", b"x", str(index))
    first, second, third = await bus.pull("work", "rollout", 3, 5.0)
    await first.ack()
    await second.reject()
    await third.retry()
    (again, last) = await bus.pull("work", "rollout", 3, 5.0)
    assert (again.attempt, last.attempt) == (2, 1)

    def count(event: str) -> float | None:
        return metrics.registry.get_sample_value(
            "kubealign_bus_messages_total", {"subject": "work", "event": event}
        )

    counted = {
        event: count(event) for event in ("published", "delivered", "acknowledged", "rejected", "returned")
    }
    assert counted == {
        "published": 4.0,
        "delivered": 5.0,
        "acknowledged": 1.0,
        "rejected": 1.0,
        "returned": 1.0,
    }


async def test_instrumented_bus_forwards_headers() -> None:
    metrics = ProcessMetrics("sums", "driver", "driver")
    bus = InstrumentedBus(MemoryBus(), metrics.bus_messages, metrics.bus_messages_lost)
    headers = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    await bus.publish("work", b"x", "1", headers)
    await bus.publish("work", b"x", "2")
    deliveries = await bus.pull("work", "rollout", 2, 5.0)
    assert [dict(delivery.headers) for delivery in deliveries] == [headers, {}]
