"""What an answer is worth, and whether the calculator was asked for it."""


def exact(prompts: list[str], responses: list[str], answer: list[str]) -> list[float]:
    """1 for the right sum, behind whatever the calculator said."""
    return [
        float(response.rpartition(">")[2] == right) for response, right in zip(responses, answer, strict=True)
    ]


def asked(prompts: list[str], responses: list[str]) -> list[float]:
    """1 where the calculator was asked."""
    return [float("]<" in response) for response in responses]
