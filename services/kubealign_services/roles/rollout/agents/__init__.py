"""Agents as workflows: an OpenAI-compatible server of the policy, whose requests are turns of an episode."""
