"""Errors of the OpenAI API."""

from typing import Any


class ApiError(Exception):
    """A request is refused. The client library raises the exception that belongs to the status.

    param: name of the parameter at fault; None: none is. code: short name of the error.
    """

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code

    def to_json(self) -> dict[str, Any]:
        """Return the body of the reply."""
        return {
            "error": {
                "message": str(self),
                "type": "invalid_request_error",
                "param": self.param,
                "code": self.code,
            }
        }


def no_room(message: str, param: str) -> ApiError:
    """Return the error of a prompt that leaves the policy no room."""
    return ApiError(400, message, param, "context_length_exceeded")
