"""Reward of an answer, and a measure of calls of the calculator."""


def exact(prompts: list[str], responses: list[str], answer: list[str]) -> list[float]:
    """Return 1 for the right sum after the calculator's answer, if any, else 0."""
    return [
        float(response.rpartition(">")[2] == right) for response, right in zip(responses, answer, strict=True)
    ]


def asked(prompts: list[str], responses: list[str]) -> list[float]:
    """Return 1 if the response calls the calculator, else 0."""
    return [float("]<" in response) for response in responses]
