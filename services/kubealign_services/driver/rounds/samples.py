"""Converts complete groups to the prompts of an iterative algorithm. Pure."""

from collections.abc import Mapping, Sequence

from kubealign_services.algorithms.rounds import Prompt, Response
from kubealign_services.batch.codec import decode
from kubealign_services.data.prepared import PreparedRow
from kubealign_services.driver.assembly import sample_id
from kubealign_services.driver.ledger import Group


def prompt_of(group: Group, row: PreparedRow, rewards: Mapping[str, float | None]) -> Prompt:
    """Return a prompt with its samples.

    Args:
        rewards: By sample id; a sample without an entry has none.
    """
    responses = []
    for sample in sorted(group.rollouts):
        sequence = decode(group.rollouts[sample].sequence)
        tokens = sequence.tokens[sequence.token("loss_mask").bool()].tolist()
        name = sample_id(group.group_id, sample)
        responses.append(Response(name, tokens, rewards.get(name)))
    return Prompt(group.group_id, row.prompt_tokens, responses, row.response_tokens)


def prompts_of(names: Sequence[str]) -> list[str]:
    """Return the prompts of the named samples, each once, in order."""
    return list(dict.fromkeys(name.partition("#")[0] for name in names))
