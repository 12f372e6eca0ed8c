"""Agents outside the rollout worker, which take its responses, call the policy, and post the reward."""
