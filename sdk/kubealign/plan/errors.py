"""What makes a plan impossible."""


class PlanError(ValueError):
    """The plan cannot be made; the message names the field, what it holds, and what it may hold."""
