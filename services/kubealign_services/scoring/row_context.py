"""Row of a rollout: the prompt's text and the other columns, as the driver sends them."""

import json
from typing import Any

from kubealign.v1 import rollout_pb2
from kubealign_services.runtime.rpc.errors import InvalidRequest


def read_row_context(rollout: rollout_pb2.Rollout) -> dict[str, Any]:
    """Return the prompt and the other columns of a rollout's row. Raises InvalidRequest."""
    try:
        context = json.loads(rollout.columns)
    except ValueError:
        context = None
    if not isinstance(context, dict) or {"prompt", "columns"} - context.keys():
        value = rollout.columns.decode(errors="replace")
        raise InvalidRequest(
            f"columns of sample {rollout.sample} is {value!r}; "
            'it must be {"prompt": TEXT, "columns": {...}} with the columns that the reward takes'
        )
    return context
