"""Arguments of an agent."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class AgentClient:
    """Access to the policy for one response: `openai.AsyncOpenAI(base_url=..., api_key=...)`.

    base_url: address with /v1 at its end. api_key: key of this response's session, which ends with the agent.
    model: name of the policy in requests.
    """

    base_url: str
    api_key: str
    model: str


@dataclass(frozen=True)
class AgentRow:
    """Row of the job's data.

    prompt: text of the row's prompt; that of chat messages is rendered. columns: all columns of the row.
    seed: seed of 63 bits that all responses to the prompt share.
    """

    prompt: str
    columns: dict[str, Any]
    seed: int
