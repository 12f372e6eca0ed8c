"""The trainer: trains the policy and publishes its weights."""
