"""CEL rules that span several fields of a spec, equivalent to `kubealign.spec.cross_field_validation`."""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from kubealign.spec.algorithms import (
    Algorithm,
    CustomOffline,
    Generate,
    Makes,
    Method,
    OnPolicy,
    RewardModel,
    RewardObjective,
    RowKind,
    Use,
)
from kubealign.spec.base import alias
from kubealign.spec.engines import Engine
from kubealign.spec.fields import model_of
from kubealign.spec.rollout import ENGINES_OF_OTHERS, Rollout
from kubealign.spec.training import Trainer
from kubealign_operator.crd.rule import Rule, text, unless
from kubealign_operator.crd.turns import DRAINS, takes_turns, with_trainer


def coherent() -> Iterator[Rule]:
    """Yield the rules of the whole spec, each with the field that its message is about."""
    for member, field in Algorithm.model_fields.items():
        model = model_of(field.annotation)
        assert model is not None and issubclass(model, Method)
        name, chosen = alias(Algorithm, member), f"has(self.algorithm.{alias(Algorithm, member)})"
        yield from _data(name, chosen, model)
        yield from _rewards(name, chosen, model.rewards)
        yield from _critic(name, chosen, has_critic=model.critic)
        yield from _reference(name, chosen, model)
        yield from _rollout(name, chosen, model)
        yield from takes_turns(name, chosen, model)
        if model.rated:
            yield _ratings(name, chosen)
        if getattr(model, "data", None) == "demonstrations" and not model.turns:
            yield _last_turn(name, chosen)
        if model is Generate:
            yield _chosen_by_rewards(name, chosen)
        yield from _teacher(name, chosen, has_teacher=model.teacher)
    yield from _adapter()
    yield from with_trainer()
    yield from _in_flight()
    yield from _names()
    yield from _stopping()


def _in_flight() -> Iterator[Rule]:
    for member in ENGINES_OF_OTHERS:
        name = alias(Engine, member)
        yield Rule(
            unless(f"has(self.rollout.engine.{name})", DRAINS),
            f"{name} cannot tell which weights made which token: write Drain, or set rollout.engine.torch",
            at=".rollout.refit.inFlight",
        )


def _data(name: str, chosen: str, model: type[Method]) -> Iterator[Rule]:
    if model.makes is Makes.DATA:
        yield Rule(
            unless(chosen, "!has(self.validation)"),
            f"{name} produces no weights to validate: remove it",
            at=".validation",
        )
        plain = " && ".join(_same("self.trainer", Trainer().model_dump(mode="json", by_alias=True)))
        yield Rule(unless(chosen, f"({plain})"), f"{name} produces no weights: remove it", at=".trainer")
        yield _learns(name, chosen, str(getattr(model, "data", "")))
    elif model is CustomOffline:
        for kind in RowKind:
            of_kind = f"{chosen} && self.algorithm.{name}.rows == {text(kind.value)}"
            yield from _rows(name, of_kind, kind.value.lower(), scores=False)
    elif model.samples and not model.online:
        yield _learns(name, chosen, str(getattr(model, "data", "")))
        yield Rule(
            unless(f"{chosen} && has(self.validation)", "has(self.validation.data.prompts)"),
            f"{name} validates on prompts",
            at=".validation.data",
        )
    elif model is RewardModel:
        regression = f"has(self.algorithm.{name}.objective.regression)"
        yield from _rows(
            name, f"{chosen} && {regression}", _rows_of(RewardObjective, "regression"), scores=True
        )
        yield from _rows(
            name, f"{chosen} && !{regression}", _rows_of(RewardObjective, "bradley_terry"), scores=True
        )
        path = "self.validation.sampling"
        yield Rule(
            unless(f"{chosen} && has(self.validation)", f"!has({path})"),
            "a reward model gives scores, not responses: remove it",
            at=".validation.sampling",
        )
    else:
        yield from _rows(name, chosen, str(getattr(model, "data", "")), scores=False)


def _rows_of(union: type[BaseModel], member: str) -> str:
    model = model_of(union.model_fields[member].annotation)
    return str(getattr(model, "data", ""))


def _learns(name: str, chosen: str, kind: str) -> Rule:
    return Rule(
        unless(chosen, f"has(self.data.{kind})"),
        f"{name} learns from {kind}: set data.{kind}",
        at=".data",
    )


def _rows(name: str, chosen: str, kind: str, *, scores: bool) -> Iterator[Rule]:
    yield _learns(name, chosen, kind)
    allowed = [kind] if scores or kind == "prompts" else [kind, "prompts"]
    condition = " || ".join(f"has(self.validation.data.{rows})" for rows in allowed)
    yield Rule(
        unless(f"{chosen} && has(self.validation)", f"({condition})"),
        f"{name} validates on {' or '.join(allowed)}",
        at=".validation.data",
    )
    if len(allowed) > 1:
        condition = "!has(self.validation.data.prompts) || has(self.validation.sampling)"
        yield Rule(
            unless(f"{chosen} && has(self.validation)", f"({condition})"),
            f"prompts alone have no loss: set it, or validate on {kind}",
            at=".validation.sampling",
        )


def _rewards(name: str, chosen: str, use: Use) -> Iterator[Rule]:
    if use is Use.NEEDED:
        message = f"{name} needs rewards: name at least one"
        yield Rule(unless(chosen, "self.rewards.size() > 0"), message, at=".rewards")
    if use is Use.NONE:
        remedy = "remove them (validation.sampling.scores measures samples)"
        message = f"{name} does not use rewards: {remedy}"
        yield Rule(unless(chosen, "self.rewards.size() == 0"), message, at=".rewards")


def _ratings(name: str, chosen: str) -> Rule:
    form = "self.data.preferences.format"
    named = " || ".join(
        f"(has({form}.{layout}) && has({form}.{layout}.chosenRating) && has({form}.{layout}.rejectedRating))"
        for layout in ("text", "chat")
    )
    return Rule(
        unless(f"{chosen} && has(self.data.preferences)", f"has({form}) && ({named})"),
        f"{name} learns from ratings: name the column that holds them",
        at=".data.preferences.format",
    )


def _last_turn(name: str, chosen: str) -> Rule:
    form = "self.data.demonstrations.format"
    guard = f"{chosen} && has(self.data.demonstrations) && has({form}) && has({form}.chat)"
    return Rule(
        unless(guard, f"{form}.chat.turns == 'Last'"),
        f"{name} has one response to a row: set Last",
        at=".data.demonstrations.format.chat.turns",
    )


def _chosen_by_rewards(name: str, chosen: str) -> Rule:
    return Rule(
        unless(chosen, f"self.algorithm.{name}.keep == 'All' || self.rewards.size() > 0"),
        f"{name} needs rewards to choose by: name at least one",
        at=".rewards",
    )


def _critic(name: str, chosen: str, *, has_critic: bool) -> Iterator[Rule]:
    if has_critic:
        guard = "has(self.critic) && has(self.critic.model)"
        yield Rule(
            unless(chosen, f"({guard}) || self.rewards.size() == 0 || self.rewards.exists(r, has(r.model))"),
            "no reward is a model to start the critic from: set critic.model",
            at=".critic",
        )
        return
    yield Rule(unless(chosen, "!has(self.critic)"), f"{name} has no critic: remove it", at=".critic")
    yield Rule(
        unless(chosen, "self.rewards.all(r, r.placement != 'WithCritic')"),
        f"{name} has no critic: set placement to Own",
        at=".rewards",
    )


def _reference(name: str, chosen: str, model: type[Method]) -> Iterator[Rule]:
    remedy, condition = "remove it", ""
    if issubclass(model, OnPolicy):
        kl = f"self.algorithm.{name}.kl"
        condition = f"!has({kl}.fixed) || {kl}.fixed.coefficient > 0.0"
        remedy += f", or set algorithm.{name}.kl.fixed.coefficient above 0"
    elif model is CustomOffline:
        condition = f"self.algorithm.{name}.reference"
    elif model.model_construct().uses_reference:
        return
    guard = f"{chosen} && has(self.reference)" if condition else chosen
    yield Rule(
        unless(guard, condition or "!has(self.reference)"),
        f"{name} uses no reference in this job: {remedy}",
        at=".reference",
    )


def _adapter() -> Iterator[Rule]:
    yield Rule(
        "!has(self.reference) || self.reference.placement != 'AdapterOff' || has(self.trainer.lora)",
        "needs an adapter to switch off: set trainer.lora, or Own",
        at=".reference.placement",
    )


def _teacher(name: str, chosen: str, *, has_teacher: bool) -> Iterator[Rule]:
    if has_teacher:
        message = f"{name} imitates a teacher: set teacher.model"
        yield Rule(unless(chosen, "has(self.teacher)"), message, at=".teacher")
    else:
        message = f"{name} has no teacher: remove it"
        yield Rule(unless(chosen, "!has(self.teacher)"), message, at=".teacher")


def _rollout(name: str, chosen: str, model: type[Method]) -> Iterator[Rule]:
    if model.samples and model.makes is Makes.DATA:
        return
    if model.samples:
        yield Rule(
            unless(chosen, "self.rollout.sampling.temperature > 0.0"),
            f"must be above 0: {name} learns from what it samples",
            at=".rollout.sampling.temperature",
        )
        return
    sampled = "(has(self.validation) && has(self.validation.sampling))"
    plain = " && ".join(_same("self.rollout", Rollout().model_dump(mode="json", by_alias=True)))
    yield Rule(
        unless(chosen, f"{sampled} || ({plain})"),
        f"{name} does not sample: remove it, or set validation.sampling",
        at=".rollout",
    )


def _same(path: str, default: Mapping[str, Any]) -> Iterator[str]:
    """Yield conditions under which the object at this path has these values; null values must be unset."""
    for name, value in default.items():
        here = f"{path}.{name}"
        match value:
            case None:
                yield f"!has({here})"
            case {}:
                yield from _same(here, value)
            case []:
                yield f"{here}.size() == 0"
            case bool():
                yield f"{here} == {str(value).lower()}"
            case str():
                yield f"{here} == {text(value)}"
            case _:
                yield f"{here} == {value!r}"


def _names() -> Iterator[Rule]:
    yield Rule(
        "!has(self.validation) || !has(self.validation.sampling) || "
        "self.validation.sampling.scores.all(s, !self.rewards.exists(r, r.name == s.name))",
        "a reward or another validation score has the name of one: rename one",
        at=".validation.sampling.scores",
    )


def _stopping() -> Iterator[Rule]:
    yield Rule(
        "!has(self.validation) || !has(self.validation.earlyStopping) || has(self.validation.everySteps)",
        "early stopping needs a measurement every so many steps: set it",
        at=".validation.everySteps",
    )
