"""Agents: code of users that calls the policy through the OpenAI API.

Agents import `AgentClient` and `AgentRow` from here, and programs that run agents outside a job's rollout
workers `serve_agent` from `kubealign.agents.external`.
"""

from kubealign.agents.contract import AgentClient, AgentRow

__all__ = ["AgentClient", "AgentRow"]
