"""The responses of a validation on their way to the sinks."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kubealign_services.roles.driver.metrics.report import MetricsReport
from kubealign_services.roles.driver.metrics.sample_logging import SampleFile


class RecordingSink:
    """Sink that keeps the responses of validations."""

    def __init__(self) -> None:
        self.received: list[tuple[int, int, Sequence[Mapping[str, Any]]]] = []

    def step(self, step: int, fence: int, metrics: Mapping[str, float]) -> None:
        raise AssertionError("a validation's responses are no metrics")

    def samples(self, step: int, fence: int, samples: Sequence[Mapping[str, Any]]) -> None:
        raise AssertionError("a validation's responses are no previews")

    def validation_samples(self, step: int, fence: int, samples: Sequence[Mapping[str, Any]]) -> None:
        self.received.append((step, fence, samples))


def test_every_sink_receives_all_responses_with_the_fence(tmp_path: Path) -> None:
    sinks = [RecordingSink(), RecordingSink()]
    file = SampleFile(tmp_path / "samples.jsonl")
    report = MetricsReport(tmp_path / "metrics.jsonl", 7, [*sinks, file])
    samples = [{"prompt": str(row)} for row in range(20)]
    report.write_validation_samples(5, samples)
    assert [sink.received for sink in sinks] == [[(5, 7, samples)]] * 2
    # The file of previews does not grow with the validation set.
    assert list(tmp_path.iterdir()) == []
