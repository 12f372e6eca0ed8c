"""How a job ends that cannot succeed, and what is mended instead by starting over from the last commit."""


class JobFailed(Exception):
    """Nothing that another try would mend. The message is the cause, as a person would say it."""


class Stopping(Exception):
    """The job was asked to stop: leave the step, commit what is proven, end."""
