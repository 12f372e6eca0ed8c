"""Messages of servers' errors."""

import json

import pytest

from kubealign_services.runtime.http_errors import MESSAGE_CHARACTERS, read_error_message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"error": {"message": "a", "code": 400}}, "a"),
        ({"error": "Unauthorized"}, "Unauthorized"),
        ({"success": False, "message": "b"}, "b"),
        ({"detail": "Not Found"}, "Not Found"),
        ({"message": "two\n\tlines"}, "two lines"),
        ({"other": 1}, '{"other": 1}'),
        (["c"], '["c"]'),
    ],
)
def test_error_messages_of_both_servers(content: object, message: str) -> None:
    assert read_error_message(json.dumps(content).encode()) == message


def test_error_messages_are_short() -> None:
    assert read_error_message(b"") == "an empty answer"
    assert read_error_message(b"<html>\xff") == "<html>\N{REPLACEMENT CHARACTER}"
    assert len(read_error_message(b"x" * 10**6)) == MESSAGE_CHARACTERS


def test_a_document_that_is_too_deep_is_its_text() -> None:
    assert read_error_message(b"[" * 10**5) == "[" * MESSAGE_CHARACTERS
