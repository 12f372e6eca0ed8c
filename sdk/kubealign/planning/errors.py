"""Errors of the planner."""


class PlanError(ValueError):
    """The plan cannot be computed. The message names the field, its value and the allowed values."""
