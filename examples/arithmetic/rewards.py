"""Validation measures of an answer to a sum. The only reward of the jobs is the learned reward model."""


def exact(prompts: list[str], responses: list[str], *, answer: list[str], **columns: object) -> list[float]:
    """Return 1 if the number after the last `=`, or the whole answer without one, is the sum, else 0."""
    return [
        float(response.rpartition("=")[2] == right) for response, right in zip(responses, answer, strict=True)
    ]


def preferred(
    prompts: list[str], responses: list[str], *, worked: list[str], **columns: object
) -> list[float]:
    """Return 1 if the working is shown and completely right, else 0."""
    return [float(response == right) for response, right in zip(responses, worked, strict=True)]
