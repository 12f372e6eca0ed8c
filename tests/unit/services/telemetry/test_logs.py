"""One JSON line for each log event, for any logged value."""

import io
import json
import logging
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kubealign_services.telemetry.json_values import to_json
from kubealign_services.telemetry.logs import set_up_logs


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    stream = io.StringIO()
    set_up_logs("sums", "trainer", "trainer-0", stream)
    yield stream
    root.handlers[:], root.level = before
    logging.captureWarnings(False)


def only_event(stream: io.StringIO) -> dict[str, object]:
    text = stream.getvalue()
    assert text.endswith("\n") and text.count("\n") == 1
    event = json.loads(text)
    assert isinstance(event, dict)
    return event


def test_event_has_names_message_and_fields(lines: io.StringIO) -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    logging.getLogger("kubealign_services.roles.trainer").info(
        "step %d done", 7, extra={"step": 7, "seconds": 0.5}
    )
    event = only_event(lines)
    time = datetime.fromisoformat(str(event.pop("time")))
    assert before <= time <= datetime.now(UTC)
    assert event == {
        "level": "info",
        "job": "sums",
        "role": "trainer",
        "process": "trainer-0",
        "message": "step 7 done",
        "logger": "kubealign_services.roles.trainer",
        "step": 7,
        "seconds": 0.5,
    }


def test_values_that_json_lacks_become_text(lines: io.StringIO) -> None:
    extra = {
        "loss": float("nan"),
        "bounds": (1, float("-inf")),
        "path": Path("/runs"),
        "by": {"kl": float("inf")},
    }
    logging.getLogger("x").warning("odd\nnumbers", extra=extra)
    event = only_event(lines)
    assert event["message"] == "odd\nnumbers"
    assert (event["loss"], event["bounds"], event["path"]) == ("nan", [1, "-inf"], "/runs")
    assert event["by"] == {"kl": "inf"}


def test_a_traceback_stays_in_its_line(lines: io.StringIO) -> None:
    try:
        raise ValueError("no such column")
    except ValueError:
        logging.getLogger("x").exception("failed")
    event = only_event(lines)
    assert event["level"] == "error"
    assert "ValueError: no such column" in str(event["exception"])


def test_warnings_are_events_and_debug_is_not(lines: io.StringIO) -> None:
    logging.getLogger("x").debug("quiet")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(True)
        warnings.warn("old option", stacklevel=1)
    assert "old option" in str(only_event(lines)["message"])


def test_text_stays_readable() -> None:
    assert to_json({"prompt": "Größe 3×4"}) == '{"prompt":"Größe 3×4"}'
