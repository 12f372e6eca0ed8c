"""Agents: code of users that calls the policy through the OpenAI API, in processes of its own.

Agents import `AgentClient` and `AgentRow` from here.
"""

from kubealign.agents.contract import AgentClient, AgentRow

__all__ = ["AgentClient", "AgentRow"]
