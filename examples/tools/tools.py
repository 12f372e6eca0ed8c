"""Calculator that the policy can call."""

import re


def calculate(argument: str) -> str:
    """Return the sum of two whole numbers.

    Raises:
        ValueError: Any other text. The policy reads the call as an error.
    """
    match = re.fullmatch(r"(\d{1,4})\+(\d{1,4})", argument)
    if match is None:
        raise ValueError(f"not a sum: {argument}")
    return str(int(match[1]) + int(match[2]))
