"""Protocol of the child process that runs a reward function: one JSON object per line in each direction.

First line to the child: the function, as {"module": "package.module:name"}, {"file": PATH, "name": NAME},
{"plugin": NAME, "parameters": OBJECT} or {"verifier": OBJECT of the spec}.
Requests: {"prompts": [text], "responses": [text], "columns": {name: [value]}}; for a tool {"argument":
text}; for a typed tool {"arguments": object}, and {"tool": NAME or null} for its schema.
Replies: {"results": [result]}, each as in `RewardResult.to_json`, {"answer": text}, {"failure": text} of a
typed tool, {"schema": object}, or {"error": KIND, "message": text}; the first line is the reply to the
start.
"""

from enum import StrEnum

#: Column of the requests for a verifier: the number of tokens of each response. No column of a data set that
#: a function takes as an argument can have this name.
RESPONSE_LENGTH = "response.length"


class FunctionFailure(StrEnum):
    """Kinds of failure in the child process."""

    MISSING = "missing"
    RAISED = "raised"
    BAD = "bad"
