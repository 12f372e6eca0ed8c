"""Tasks of an environment of verifiers, and the rows that name them."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from kubealign_services.environments.contract import EnvironmentFailed
from kubealign_services.scoring.functions.child_main import describe_error

#: Columns of a row: position of its task in the taskset, from 0, and hash of the task's contents.
INDEX_COLUMN = "task_index"
KEY_COLUMN = "task_key"

_WRITE_ROWS = "write the rows with python -m kubealign_services.agents.verifiers.rows"


class TaskTable:
    """Finds the tasks of a taskset by the rows of a job. Loads tasks up to the last one that was asked for.

    Args:
        taskset: A vf.Taskset, which may be infinite.
    """

    def __init__(self, taskset: Any) -> None:
        self._tasks: list[Any] = []
        self._rest: Iterator[Any] = iter(taskset)

    def find(self, columns: Mapping[str, Any]) -> Any:
        """Return the task of a row.

        Raises:
            EnvironmentFailed: The row names no task, the taskset has no such task, or the task has other
                contents than when the row was written.
        """
        index, key = columns.get(INDEX_COLUMN), columns.get(KEY_COLUMN)
        if not isinstance(index, int) or index < 0:
            raise EnvironmentFailed(
                f"{INDEX_COLUMN}: the row holds {index!r}, not the position of a task: {_WRITE_ROWS}",
                permanent=True,
            )
        task = self.get(index)
        if task is None:
            raise EnvironmentFailed(
                f"{INDEX_COLUMN}: the row holds {index}; the taskset has the tasks 0 to "
                f"{len(self._tasks) - 1}: {_WRITE_ROWS}",
                permanent=True,
            )
        if key is not None and key != task.key:
            raise EnvironmentFailed(
                f"{KEY_COLUMN}: task {index} of the taskset is another one than when its row was written, "
                f"since the taskset or its configuration has changed: {_WRITE_ROWS}",
                permanent=True,
            )
        return task

    def get(self, index: int) -> Any:
        """Return a task by its position from 0; None: the taskset has fewer. Raises EnvironmentFailed."""
        try:
            self._tasks += islice(self._rest, max(0, index + 1 - len(self._tasks)))
        # Loading tasks runs code of another package, which may raise anything.
        except (Exception, SystemExit) as error:
            raise EnvironmentFailed(
                f"loading its tasks raised {describe_error(error)}", permanent=True
            ) from error
        return self._tasks[index] if index < len(self._tasks) else None


def make_row(task: Any) -> dict[str, Any]:
    """Return the row of a task: its messages, its position and the hash of its contents."""
    data = task.data
    messages = [] if data.system_prompt is None else [{"role": "system", "content": data.system_prompt}]
    if isinstance(data.prompt, str):
        messages.append({"role": "user", "content": data.prompt})
    elif data.prompt is not None:
        messages += [{"role": each.role, "content": _text(each.content)} for each in data.prompt]
    if not any(message["role"] == "user" for message in messages):
        # A user of the environment's opens the conversation; the row's prompt is not sent.
        messages.append({"role": "user", "content": data.name or f"task {data.idx}"})
    return {"messages": messages, INDEX_COLUMN: data.idx, KEY_COLUMN: task.key}


def _text(content: Any) -> str:
    """Return the text of a message's content, which may be a list of parts."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(getattr(part, "text", None) or "" for part in content)
