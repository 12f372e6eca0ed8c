"""CEL rules of jobs that measure and do not train, equivalent to `kubealign.spec.validation_checks`.

The operator checks when it reads the job that the data of an evaluation, if it names any, are its
validation's: CEL cannot compare them at a bounded cost.
"""

from collections.abc import Iterator

from kubealign.spec.cross_field_validation import NO_STEPS_TO_COUNT
from kubealign.spec.validation_checks import (
    MEASURES_EVERY_MODEL,
    NO_CHECKPOINTS_TO_KEEP,
    NO_STEPS_TO_STOP,
    NOTHING_TO_MEASURE,
)
from kubealign_operator.crd.cel import CelRule, implies
from kubealign_operator.crd.validation_rules import held_out_rules


def evaluation_rules(algorithm_is_set: str) -> Iterator[CelRule]:
    """Yield the rules that an evaluation has a validation on prompts, and no settings of training."""
    yield CelRule(
        implies(algorithm_is_set, "has(self.validation)"), NOTHING_TO_MEASURE, field_path=".validation"
    )
    yield from held_out_rules(
        algorithm_is_set, "has({rows}.data.prompts)", "evaluate validates on prompts", "data"
    )
    yield CelRule(implies(algorithm_is_set, "!has(self.maxSteps)"), NO_STEPS_TO_COUNT, field_path=".maxSteps")
    measured = f"{algorithm_is_set} && has(self.validation)"
    for field, own, of_set, message in (
        ("earlyStopping", "!has({field})", None, NO_STEPS_TO_STOP),
        ("everySteps", "!has({field})", "!has({field})", NO_STEPS_TO_STOP),
        ("atStart", "{field}", "(!has({field}) || {field})", MEASURES_EVERY_MODEL),
        ("atEnd", "{field}", "(!has({field}) || {field})", MEASURES_EVERY_MODEL),
    ):
        condition = own.format(field=f"self.validation.{field}")
        yield CelRule(implies(measured, condition), message, field_path=f".validation.{field}")
        if of_set is not None:
            condition = f"self.validation.sets.all(s, {of_set.format(field=f's.{field}')})"
            yield CelRule(implies(measured, condition), message, field_path=".validation.sets")
    yield CelRule(
        implies(algorithm_is_set, "!has(self.checkpoint.keepBest)"),
        NO_CHECKPOINTS_TO_KEEP,
        field_path=".checkpoint.keepBest",
    )
