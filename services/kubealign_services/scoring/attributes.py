"""Weighting of a multi-score reward model into one reward."""

from collections.abc import Mapping, Sequence


class UnknownAttribute(ValueError):
    """A reward weights a score that its model does not have. The message names the model's scores."""


def attribute_weights(names: Sequence[str], weights: Mapping[str, float]) -> list[float]:
    """Return one weight for each of the model's scores: the given ones, 0 for others; 1 for all where none is
    given.

    Raises UnknownAttribute.
    """
    unknown = [name for name in weights if name not in names]
    if unknown:
        raise UnknownAttribute(f"the model has no score {', '.join(unknown)}; it gives {', '.join(names)}")
    return [weights.get(name, 0.0) if weights else 1.0 for name in names]


def check_same_scores(scores: Sequence[Sequence[str]]) -> None:
    """Raise UnknownAttribute where the models of an ensemble have other scores than the first, or another
    order.

    A single score may have a different name in each.
    """
    for index, names in enumerate(scores):
        if len(names) != len(scores[0]) or (len(names) > 1 and list(names) != list(scores[0])):
            raise UnknownAttribute(
                f"models[{index}] gives the scores {', '.join(names)}; "
                f"models[0] gives {', '.join(scores[0])}: the models of an ensemble must have the same scores"
            )
