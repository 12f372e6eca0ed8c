"""The calculator that the policy may ask."""

import re


def calculate(argument: str) -> str:
    """The sum of two whole numbers. Anything else raises, which the policy reads as an error."""
    found = re.fullmatch(r"(\d{1,4})\+(\d{1,4})", argument)
    if found is None:
        raise ValueError(f"not a sum: {argument}")
    return str(int(found[1]) + int(found[2]))
