"""How a local run fails, each with a message for a person."""


class RunFailed(Exception):
    """The job has failed, or cannot be started. The message says what happened and what to do."""


class RunRefused(RunFailed):
    """Nothing was started: the run folder, a setting or a missing program stands in the way."""
