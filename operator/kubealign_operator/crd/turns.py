"""CEL rules for rollout workers in the trainer's processes, equivalent to
`kubealign.spec.cross_field_validation`.
"""

from collections.abc import Iterator

from kubealign.spec.algorithms import Makes, Method
from kubealign.spec.base import alias
from kubealign.spec.engines import Engine
from kubealign_operator.crd.rule import Rule, unless

_WITH_TRAINER = "self.rollout.placement == 'WithTrainer'"
_IN_FLIGHT = "self.rollout.refit.inFlight"
#: If unset, the job drains or its engine supports a better policy.
DRAINS = f"(!has({_IN_FLIGHT}) || {_IN_FLIGHT} == 'Drain')"


def takes_turns(name: str, chosen: str, model: type[Method]) -> Iterator[Rule]:
    """Yield the rules that depend on the algorithm."""
    if model.makes is Makes.DATA:
        message = f"{name} has no trainer whose processes could be shared: set Own"
        yield Rule(unless(chosen, f"!({_WITH_TRAINER})"), message, at=".rollout.placement")
    if "max_staleness" in model.model_fields:
        path = f".algorithm.{name}.maxStaleness"
        yield Rule(
            unless(f"{chosen} && {_WITH_TRAINER}", f"self{path} == 0"),
            "training and generation take turns: write 0, or set rollout.placement to Own",
            at=path,
        )


def with_trainer() -> Iterator[Rule]:
    """Yield the rules that apply to every algorithm."""
    own = "or set rollout.placement to Own"
    yield Rule(
        unless(_WITH_TRAINER, "self.rollout.replicas == self.trainer.ranks"),
        f"each of the trainer's processes has one worker: write trainer.ranks, {own}",
        at=".rollout.replicas",
    )
    others = " && ".join(
        f"!has(self.rollout.engine.{alias(Engine, member)})"
        for member in Engine.model_fields
        if member != Engine.default_member
    )
    yield Rule(
        unless(_WITH_TRAINER, f"({others})"),
        f"only the torch engine can run in the trainer's processes: set torch, {own}",
        at=".rollout.engine",
    )
    torch = "self.rollout.engine.torch"
    yield Rule(
        unless(_WITH_TRAINER, f"(!has({torch}) || {torch}.tensorParallel == 1)"),
        f"a worker WithTrainer is one process: write 1, {own}",
        at=".rollout.engine.torch.tensorParallel",
    )
    yield Rule(
        unless(_WITH_TRAINER, DRAINS),
        f"training and generation take turns: write Drain, {own}",
        at=".rollout.refit.inFlight",
    )
    yield Rule(
        unless(_WITH_TRAINER, "!has(self.trainer.backend.megatron)"),
        f"only the torch backend can offload its memory during generation: set torch, {own}",
        at=".trainer.backend",
    )
