"""Errors of reward functions. `permanent`: a retry cannot help."""

from typing import ClassVar


class RewardError(Exception):
    """A reward function did not return rewards. The message names the reward and the function."""

    permanent: ClassVar[bool] = True


class RewardMissing(RewardError):
    """The function cannot be found or imported."""


class RewardRaised(RewardError):
    """The function raised, or its process ended. The data may be the cause, so other samples may succeed."""

    permanent = False


class RewardHung(RewardError):
    """The function did not respond before its timeout; its process was killed."""


class BadReward(RewardError):
    """The function returned something else than one finite number or None per response, or has another
    signature.
    """
