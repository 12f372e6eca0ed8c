"""What a driver says in Redis, understood; whatever is malformed counts as not said."""

import pytest

from kubealign_operator.controller.progress import understood
from kubealign_operator.render.observed import Progress


def test_the_status_and_the_newest_figures() -> None:
    status = {"step": "7", "max_steps": "10", "weight_version": "6", "waiting_for": "rollouts"}
    entries = [
        ("2-0", {"json": '{"reward/mean": 0.5}'}),
        ("1-0", {"json": '{"reward/mean": 0.25, "kl/reference": 0.125}'}),
    ]
    assert understood(status, entries) == Progress(7, 10, 6, 0.5, 0.125, "rollouts")


def test_a_driver_that_was_not_heard() -> None:
    assert understood({}, []) is None


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"reward/mean": "nan"}', '{"reward/mean": null}'])
def test_figures_that_are_none(text: str) -> None:
    progress = understood({"step": "x", "max_steps": "1e400"}, [("1-0", {"json": text})])
    assert progress == Progress()
