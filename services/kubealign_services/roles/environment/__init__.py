"""The environment role: plays the episodes of rollout workers in processes of its own."""
