"""Errors of reward functions.

`permanent`: a retry cannot help. `is_of_sample`: the sample may be the cause, and others may succeed.
"""

from typing import ClassVar


class RewardError(Exception):
    """A reward function did not return rewards. The message names the reward and the function."""

    permanent = True
    is_of_sample: ClassVar[bool] = False


class RewardMissing(RewardError):
    """The function cannot be found or imported."""


class RewardRaised(RewardError):
    """The function raised, or its process ended."""

    permanent = False
    is_of_sample = True


class RewardHung(RewardError):
    """The function did not respond before its timeout; its process was killed.

    `permanent` is set for samples that hang one after another.
    """

    permanent = False
    is_of_sample = True


class RewardNotImported(RewardHung):
    """The import of the function did not end before its timeout; its process was killed."""

    permanent = True
    is_of_sample = False


class BadSteps(RewardError):
    """The function returned rewards of steps that do not fit the response."""

    permanent = False
    is_of_sample = True


class BadReward(RewardError):
    """The function returned something else than one finite number or None per response, or has another
    signature.
    """
