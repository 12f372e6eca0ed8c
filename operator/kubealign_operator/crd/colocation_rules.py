"""CEL rules for rollout workers in the trainer's processes, equivalent to
`kubealign.spec.cross_field_validation`.
"""

from collections.abc import Iterator

from kubealign.spec.algorithms import AlgorithmSpec
from kubealign.spec.base import field_alias
from kubealign.spec.sections.engines import Engine
from kubealign_operator.crd.cel import CelRule, implies

_COLOCATED_CONDITION = "self.rollout.placement == 'WithTrainer'"
_IN_FLIGHT = "self.rollout.refit.inFlight"
#: If unset, the job drains or its engine supports a better policy.
DRAINS_CONDITION = f"(!has({_IN_FLIGHT}) || {_IN_FLIGHT} == 'Drain')"


def colocated_algorithm_rules(
    name: str, algorithm_is_set: str, model: type[AlgorithmSpec]
) -> Iterator[CelRule]:
    """Yield the rules that depend on the algorithm."""
    if not model.makes.is_model:
        message = f"{name} has no trainer whose processes could be shared: set Own"
        yield CelRule(
            implies(algorithm_is_set, f"!({_COLOCATED_CONDITION})"), message, field_path=".rollout.placement"
        )
    if "max_staleness" in model.model_fields:
        path = f".algorithm.{name}.maxStaleness"
        yield CelRule(
            implies(f"{algorithm_is_set} && {_COLOCATED_CONDITION}", f"self{path} == 0"),
            "training and generation take turns: write 0, or set rollout.placement to Own",
            field_path=path,
        )


def colocated_rollout_rules() -> Iterator[CelRule]:
    """Yield the rules that apply to every algorithm."""
    own = "or set rollout.placement to Own"
    yield CelRule(
        implies(_COLOCATED_CONDITION, "self.rollout.replicas == self.trainer.ranks"),
        f"each of the trainer's processes has one worker: write trainer.ranks, {own}",
        field_path=".rollout.replicas",
    )
    others = " && ".join(
        f"!has(self.rollout.engine.{field_alias(Engine, member)})"
        for member in Engine.model_fields
        if member != Engine.default_member
    )
    yield CelRule(
        implies(_COLOCATED_CONDITION, f"({others})"),
        f"only the torch engine can run in the trainer's processes: set torch, {own}",
        field_path=".rollout.engine",
    )
    torch = "self.rollout.engine.torch"
    yield CelRule(
        implies(_COLOCATED_CONDITION, f"(!has({torch}) || {torch}.tensorParallel == 1)"),
        f"a worker WithTrainer is one process: write 1, {own}",
        field_path=".rollout.engine.torch.tensorParallel",
    )
    yield CelRule(
        implies(_COLOCATED_CONDITION, DRAINS_CONDITION),
        f"training and generation take turns: write Drain, {own}",
        field_path=".rollout.refit.inFlight",
    )
    yield CelRule(
        implies(_COLOCATED_CONDITION, "!has(self.trainer.backend.megatron)"),
        f"only the torch backend can offload its memory during generation: set torch, {own}",
        field_path=".trainer.backend",
    )
