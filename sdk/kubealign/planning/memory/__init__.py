"""Memory peaks of trainers, frozen models and engines."""
