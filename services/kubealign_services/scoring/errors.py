"""How a reward function can fail. `permanent`: trying again cannot mend it."""

from typing import ClassVar


class RewardError(Exception):
    """A reward function did not give rewards. The message names the reward and the function."""

    permanent: ClassVar[bool] = True


class RewardMissing(RewardError):
    """The function cannot be found or imported."""


class RewardRaised(RewardError):
    """The function raised, or its process ended. The data may be the cause, so other samples may still
    go well."""

    permanent = False


class RewardHung(RewardError):
    """The function did not answer before its deadline; its process was ended."""


class BadReward(RewardError):
    """The function gave something else than one finite number a response, or cannot be called as rewards
    are."""
