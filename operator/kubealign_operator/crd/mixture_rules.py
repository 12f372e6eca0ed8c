"""CEL rules for mixtures of experts, equivalent to `kubealign.spec.cross_field_validation`.

The types of models and the names of adapted weights are checked when the job is read.
"""

from collections.abc import Iterator

from kubealign.spec.algorithms import AlgorithmSpec
from kubealign.spec.base import field_alias
from kubealign.spec.sections.engines import Engine
from kubealign_operator.crd.cel import CelRule, implies

_IS_REPLAYED = "self.rollout.routingReplay"
_REPLAY_PATH = ".rollout.routingReplay"
_NO_MEGATRON = "!has(self.trainer.backend.megatron)"


def routing_replay_algorithm_rules(
    name: str, algorithm_is_set: str, model: type[AlgorithmSpec]
) -> Iterator[CelRule]:
    """Yield the rule that only algorithms that train on the samples of each step replay their routing."""
    if not model.online:
        message = f"{name} does not train on the samples of each step: set false"
        yield CelRule(implies(algorithm_is_set, f"!{_IS_REPLAYED}"), message, field_path=_REPLAY_PATH)


def mixture_rules() -> Iterator[CelRule]:
    """Yield the rules that apply to every algorithm."""
    for member in Engine.model_fields:
        if member != Engine.default_member:
            name = field_alias(Engine, member)
            yield CelRule(
                implies(f"has(self.rollout.engine.{name})", f"!{_IS_REPLAYED}"),
                f"the engine {name} records no experts: set rollout.engine.torch, or false",
                field_path=_REPLAY_PATH,
            )
    torch = "self.rollout.engine.torch"
    yield CelRule(
        implies(_IS_REPLAYED, f"(!has({torch}) || {torch}.tensorParallel == 1)"),
        "a model in several processes records no experts: write 1, or set rollout.routingReplay to false",
        field_path=".rollout.engine.torch.tensorParallel",
    )
    yield CelRule(
        implies(_IS_REPLAYED, _NO_MEGATRON),
        "the backend megatron replays no experts: set trainer.backend.torch, or false",
        field_path=_REPLAY_PATH,
    )
    coefficient = "self.algorithm.sft.routerLossCoefficient"
    yield CelRule(
        implies(f"has(self.algorithm.sft) && has({coefficient}) && {coefficient} > 0.0", _NO_MEGATRON),
        "the backend megatron has no such loss: set trainer.backend.torch, or 0",
        field_path=".algorithm.sft.routerLossCoefficient",
    )
