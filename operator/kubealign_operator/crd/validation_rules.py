"""CEL rules of a validation, equivalent to `kubealign.spec.validation_checks`."""

from collections.abc import Iterator

from kubealign.spec.sections.engines import InferenceServer
from kubealign.spec.validation_checks import (
    BELOW_MIN_TOKENS,
    EARLY_STOPPING_NEEDS_STEPS,
    KEEP_BEST_NEEDS_STEPS,
    SGLANG_VALIDATES_UNTRUNCATED,
)
from kubealign_operator.crd.cel import CelRule, cel_string, implies


def held_out_rules(given: str, condition: str, message: str, field: str) -> Iterator[CelRule]:
    """Yield the rules that a condition holds for the rows of validation.data, and for those of every set.

    Args:
        given: CEL expression under which the rules hold.
        condition: CEL expression in which {rows} stands for the section with the rows.
        message: Message of a violation.
        field: Field of validation that the message is about.
    """
    has_rows = f"{given} && has(self.validation)"
    yield CelRule(
        implies(f"{has_rows} && has(self.validation.data)", f"({condition.format(rows='self.validation')})"),
        message,
        field_path=f".validation.{field}",
    )
    yield CelRule(
        implies(has_rows, f"self.validation.sets.all(s, !has(s.data) || ({condition.format(rows='s')}))"),
        message,
        field_path=".validation.sets",
    )


def _sampling_rules(given: str, condition: str, message: str, field: str) -> Iterator[CelRule]:
    """Yield the rules as `held_out_rules`, also for the sampling of presets."""
    has_sets = f"{given} && has(self.validation)"
    own, _ = held_out_rules(given, condition, message, field)
    yield own
    expression = implies(has_sets, f"self.validation.sets.all(s, {condition.format(rows='s')})")
    yield CelRule(expression, message, field_path=".validation.sets")


def validation_rules() -> Iterator[CelRule]:
    """Yield the rules that a validation and other sections of the spec have to fulfil together."""
    repeated = "has(self.validation.everySteps) || self.validation.sets.exists(s, has(s.everySteps))"
    yield CelRule(
        f"!has(self.validation) || !has(self.validation.earlyStopping) || {repeated}",
        EARLY_STOPPING_NEEDS_STEPS,
        field_path=".validation.everySteps",
    )
    yield CelRule(
        f"!has(self.checkpoint.keepBest) || (has(self.validation) && ({repeated}))",
        KEEP_BEST_NEEDS_STEPS,
        field_path=".validation.everySteps",
    )
    server = "self.rollout.engine.openai"
    is_sglang = f"has({server}) && {server}.server == {cel_string(InferenceServer.SGLANG)}"
    least = "self.rollout.sampling.minTokens"
    for given, field, condition, message in (
        (is_sglang, "topK", "{value} == 0", SGLANG_VALIDATES_UNTRUNCATED),
        (is_sglang, "topP", "{value} == 1.0", SGLANG_VALIDATES_UNTRUNCATED),
        ("true", "maxTokens", f"{{value}} >= {least}", BELOW_MIN_TOKENS),
    ):
        path = f"{{rows}}.sampling.{field}"
        yield from _sampling_rules(
            given,
            f"!has({{rows}}.sampling) || !has({path}) || {condition.format(value=path)}",
            message,
            f"sampling.{field}",
        )
    yield CelRule(
        "!has(self.validation) || "
        "self.validation.sets.all(s, s.rewards.all(name, self.rewards.exists(r, r.name == name)))",
        "names no reward of the job: write the name of one, or remove it",
        field_path=".validation.sets",
    )
