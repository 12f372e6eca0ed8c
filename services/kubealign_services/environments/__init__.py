"""Environments: tasks and games that answer the policy's turns and reward them.

Environments of users import `Observation` and `StepResult` from here.
"""

from kubealign_services.environments.contract import Environment, EnvironmentFailed, Observation, StepResult

__all__ = ["Environment", "EnvironmentFailed", "Observation", "StepResult"]
