"""Reward: the share of the response's characters that are the letter a."""


def reward(prompts, responses, **columns):
    return [response.count("a") / max(1, len(response)) for response in responses]
