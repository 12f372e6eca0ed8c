"""Rewards and validation scores by the job's own policy: its questions go to the rollout workers."""
