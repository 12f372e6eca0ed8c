"""A tool as chat templates take it."""

from typing import Any

ADD: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {
                "a": {"type": "integer", "description": "One number."},
                "b": {"type": "integer", "description": "Another number."},
            },
            "required": ["a", "b"],
        },
    },
}
