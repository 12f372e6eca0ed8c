"""Parsing of a driver's progress; malformed values count as absent."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubealign_operator.controller.platform_redis.progress import parse_progress
from kubealign_operator.controller.platform_redis.replies import PROGRESS_FIELDS, ProgressReply
from kubealign_operator.kube_views.observed_job import DriverProgress


def _parse(status: dict[str, bytes], *metrics: bytes) -> DriverProgress | None:
    return parse_progress(ProgressReply(status, metrics))


def test_status_and_newest_metrics() -> None:
    status = {"step": b"7", "max_steps": b"10", "weight_version": b"6", "waiting_for": b"rollouts"}
    entries = [b'{"reward/mean": 0.5}', b'{"reward/mean": 0.25, "kl/reference": 0.125}']
    assert _parse(status, *entries) == DriverProgress(7, 10, 6, 0.5, 0.125, "rollouts")


def test_no_number_of_steps_is_unknown() -> None:
    assert _parse({"step": b"0", "max_steps": b"0"}) == DriverProgress(step=0)


def test_no_report_is_no_progress() -> None:
    assert _parse({}) is None


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"{",
        b"[1]",
        b"\xff",
        b"[" * 100_000,
        b'{"reward/mean": "nan"}',
        b'{"reward/mean": null}',
        b'{"reward/mean": 1e999}',
        b'{"reward/mean": ' + b"9" * 5000 + b"}",
        b'{"reward/mean": 1, "x": "' + b"x" * 2**20 + b'"}',
    ],
)
def test_malformed_metrics_are_ignored(document: bytes) -> None:
    assert _parse({"step": b"x", "max_steps": b"1e400"}, document) == DriverProgress()


@pytest.mark.parametrize("text", [b"inf", b"nan", b"-1", b"1e300", b"9223372036854775808", b"\xff", b""])
def test_a_number_that_the_status_cannot_hold_is_unknown(text: bytes) -> None:
    """Check the bounds of int64: the API server would refuse the whole status of the job."""
    assert _parse({"step": text, "weight_version": text}) == DriverProgress()


def test_texts_are_bounded_and_valid() -> None:
    progress = _parse({"waiting_for": b"\xff" * 10_000})
    assert progress is not None
    assert progress.waiting_for == "\ufffd" * 512


@given(
    st.dictionaries(st.sampled_from(PROGRESS_FIELDS), st.binary(max_size=40)),
    st.lists(st.binary(), max_size=4),
)
def test_no_bytes_raise(status: dict[str, bytes], documents: list[bytes]) -> None:
    progress = _parse(status, *documents)
    assert (progress is None) == (not status)
