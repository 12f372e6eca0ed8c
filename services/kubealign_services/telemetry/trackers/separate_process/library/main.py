"""Passes the calls of a LibraryClient on to a tracker's library: `python main.py LIBRARY`.

Reads JSON objects with method and arguments from standard input, one a line, and answers each with an object
whose `error` is null or a text. Ends with its input.
"""

import importlib
import json
import os
import sys
from typing import Any

#: Library -> module beside this one, and its class.
WRITERS = {
    "swanlab": ("swanlab_writer", "SwanLabWriter"),
    "trackio": ("trackio_writer", "TrackioWriter"),
}


def main() -> None:
    # The library may print, and may ask the user: neither must reach the pipes to the driver.
    calls, answers = os.fdopen(os.dup(0), "r"), os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    writer: Any = None
    for line in calls:
        call = json.loads(line)
        error = None
        try:
            if call["method"] == "open":
                module, name = WRITERS[sys.argv[1]]
                writer = getattr(importlib.import_module(module), name)(**call["arguments"])
            else:
                getattr(writer, call["method"])(**call["arguments"])
        # The client reports the exception, and ends this process.
        except Exception as failure:  # noqa: BLE001
            error = f"{type(failure).__name__}: {failure}"
        answers.write(json.dumps({"error": error}) + "\n")


if __name__ == "__main__":
    main()
