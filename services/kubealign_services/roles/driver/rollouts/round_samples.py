"""Converts complete groups to the prompts of an iterative algorithm. Pure."""

from collections.abc import Mapping, Sequence

from kubealign_services.algorithms.iterative.rounds import RoundPrompt, RoundResponse
from kubealign_services.batch.codec import decode
from kubealign_services.data.prepared import PreparedRow
from kubealign_services.roles.driver.rollouts.batch_assembly import make_sample_id
from kubealign_services.roles.driver.rollouts.group_tracker import RolloutGroup


def to_algorithm_prompt(group: RolloutGroup, row: PreparedRow, rewards: Mapping[str, float | None]) -> RoundPrompt:
    """Return a prompt with its samples.

    Args:
        rewards: By sample id; a sample without an entry has none.
    """
    responses = []
    for sample in sorted(group.rollouts):
        sequence = decode(group.rollouts[sample].sequence)
        tokens = sequence.tokens[sequence.token("loss_mask").bool()].tolist()
        name = make_sample_id(group.group_id, sample)
        responses.append(RoundResponse(name, tokens, rewards.get(name)))
    return RoundPrompt(group.group_id, row.prompt_tokens, responses, row.response_tokens)


def list_prompts(names: Sequence[str]) -> list[str]:
    """Return the prompts of the named samples, each once, in order."""
    return list(dict.fromkeys(name.partition("#")[0] for name in names))
