"""The rollout worker: pulls prompts from the bus, generates samples, and receives new weights."""
