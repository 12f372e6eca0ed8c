"""Token counters of an engine as Prometheus metrics."""

from collections.abc import Callable

from kubealign_services.generation.contract import EngineLoad
from kubealign_services.telemetry.metrics import ProcessMetrics


def make_token_counter(metrics: ProcessMetrics) -> Callable[[EngineLoad], None]:
    """Return an observer that counts the tokens processed since its last call."""
    seen = EngineLoad()

    def observe(load: EngineLoad) -> None:
        nonlocal seen
        metrics.engine_tokens.labels("generated").inc(load.generated_tokens - seen.generated_tokens)
        metrics.engine_tokens.labels("prompt").inc(load.prefilled_tokens - seen.prefilled_tokens)
        seen = load

    return observe
