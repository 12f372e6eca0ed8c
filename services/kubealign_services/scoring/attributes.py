"""A model with several scores as one reward: each score's weight, by its name."""

from collections.abc import Mapping, Sequence


class UnknownAttribute(ValueError):
    """A reward weighs a score that its model does not give. The message names those that it gives."""


def attribute_weights(names: Sequence[str], weights: Mapping[str, float]) -> list[float]:
    """One weight for each of the model's scores: those given, 0 for the others; 1 for all where none is
    given. Raises UnknownAttribute."""
    unknown = [name for name in weights if name not in names]
    if unknown:
        raise UnknownAttribute(f"the model has no score {', '.join(unknown)}; it gives {', '.join(names)}")
    return [weights.get(name, 0.0) if weights else 1.0 for name in names]


def check_alike(scores: Sequence[Sequence[str]]) -> None:
    """Raises UnknownAttribute where the models of an ensemble give other scores than the first, in another
    order included. A single score may be called differently in each."""
    for index, names in enumerate(scores):
        if len(names) != len(scores[0]) or (len(names) > 1 and list(names) != list(scores[0])):
            raise UnknownAttribute(
                f"models[{index}] gives the scores {', '.join(names)}; "
                f"models[0] gives {', '.join(scores[0])}: the models of an ensemble score the same"
            )
