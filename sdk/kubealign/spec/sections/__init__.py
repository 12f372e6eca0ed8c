"""Sections of a job's spec: data, models, training, rollout, rewards, validation, trackers, lifecycle."""
