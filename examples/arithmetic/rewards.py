"""What is measured of an answer to a sum. The learned reward model is the only reward; these are for
validation."""


def exact(prompts: list[str], responses: list[str], *, answer: list[str], **columns: object) -> list[float]:
    """1 where the number after the last `=`, or the whole answer where there is none, is the sum."""
    return [
        float(response.rpartition("=")[2] == right) for response, right in zip(responses, answer, strict=True)
    ]


def preferred(
    prompts: list[str], responses: list[str], *, worked: list[str], **columns: object
) -> list[float]:
    """1 where the working is shown, and all of it is right."""
    return [float(response == right) for response, right in zip(responses, worked, strict=True)]
