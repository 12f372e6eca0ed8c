"""CEL rules of single models: unions, and the checks of the models' own validators."""

from collections.abc import Iterator, Mapping, Sequence

from pydantic import BaseModel

from kubealign.spec.algorithms import (
    KL,
    PPO,
    RLOO,
    Annotate,
    Comparison,
    Generate,
    Importance,
    Judge,
    Normalization,
    OnPolicy,
    Revision,
)
from kubealign.spec.base import Union, alias
from kubealign.spec.coherence import RESERVED_NAMES
from kubealign.spec.fields import entry, model_of
from kubealign.spec.job import Critic, Reference
from kubealign.spec.pod_template import (
    RESERVED_LABELS,
    RESERVED_PREFIX,
    RESERVED_VARIABLES,
    EnvSource,
    EnvVariable,
    PodMetadata,
)
from kubealign.spec.pod_volumes import RESERVED_FOLDERS, RESERVED_VOLUMES, Volume, VolumeMount
from kubealign.spec.rewards import SOURCES, Reward
from kubealign.spec.rollout import Rollout, Sampling
from kubealign.spec.trackers import MEMBERS, Tracker
from kubealign.spec.training import Trainer
from kubealign.spec.validation import EarlyStopping, Target, ValidationScore
from kubealign_operator.crd.rule import Rule, text


def one_of(names: Sequence[str], example: str = "") -> list[Rule]:
    """Return rules that exactly one of these fields is set."""
    remedy = f": write {example}" if example else ""
    message = f"exactly one of {', '.join(names)} must be set; none is set{remedy}"
    return [Rule(" || ".join(f"has(self.{name})" for name in names), message), at_most_one_of(names)]


def at_most_one_of(names: Sequence[str]) -> Rule:
    """Return the rule that at most one of these fields is set."""
    conditions = ", ".join(f"has(self.{name})" for name in names)
    message = f"exactly one of {', '.join(names)} must be set; several are set: remove all but one"
    return Rule(f"[{conditions}].filter(set, set).size() <= 1", message)


def union(model: type[Union]) -> list[Rule]:
    """Return the rules of a union; none if its only member is the default."""
    names = [alias(model, name) for name in model.model_fields]
    if model.default_member is None:
        return one_of(names)
    return [at_most_one_of(names)] if len(names) > 1 else []


def _layout() -> Iterator[Rule]:
    """Yield the rules of a trainer whose ranks are divided by megatron."""
    megatron, is_set = "self.backend.megatron", "has(self.backend.megatron)"
    shared = f"{megatron}.tensorParallel * {megatron}.pipelineParallel"
    yield Rule(
        f"!{is_set} || self.ranks % ({shared} * {megatron}.contextParallel) == 0",
        "must be a multiple of tensorParallel x pipelineParallel x contextParallel",
        at=".ranks",
    )
    yield Rule(
        f"!{is_set} || self.ranks % ({shared} * {megatron}.expertParallel) == 0",
        "x tensorParallel x pipelineParallel must divide trainer.ranks",
        at=".backend.megatron.expertParallel",
    )
    yield Rule(
        f"!{is_set} || {megatron}.expertParallel == 1 || {megatron}.tensorParallel == 1 || "
        f"{megatron}.sequenceParallel",
        "must be true where both expertParallel and tensorParallel are above 1",
        at=".backend.megatron.sequenceParallel",
    )


def _holds(field: str, name: str) -> Rule:
    """Return the rule that a prompt template contains this placeholder."""
    return Rule(
        f"self.{field}.contains({text('{' + name + '}')})", f"must have {{{name}}} in it", at=f".{field}"
    )


_KL = one_of(["fixed", "adaptive"], "fixed: {coefficient: 0.05}")

_MINIBATCHES = Rule(
    "!has(self.minibatchSequences) || "
    "self.promptsPerStep * self.samplesPerPrompt % self.minibatchSequences == 0",
    "must divide promptsPerStep x samplesPerPrompt",
    at=".minibatchSequences",
)
_ADAPTIVE = Rule(
    "!has(self.kl.adaptive) || self.kl.placement != 'Loss'",
    "an adaptive coefficient needs the KL penalty in the reward: set placement to Reward, or use fixed",
    at=".kl.adaptive",
)
_COMPARED = Rule(
    "!(self.advantage.center in ['Group', 'LeaveOneOut']) || self.samplesPerPrompt >= 2",
    "compares a prompt's samples: set samplesPerPrompt to at least 2, or center to Batch",
    at=".advantage.center",
)
_REWARD_ONLY = Rule(
    "self.kl.placement == 'Reward' || (has(self.kl.fixed) && self.kl.fixed.coefficient == 0.0)",
    "RLOO subtracts the KL penalty from the sequence's reward: set Reward",
    at=".kl.placement",
)
_NAMES = [
    Rule(f"self.name != {text(name)}", f"this name stands for {meaning}: choose another", at=".name")
    for name, meaning in RESERVED_NAMES.items()
]
_LABELS = ", ".join(text(label) for label in RESERVED_LABELS)
_FOLDERS = ", ".join(text(folder) for folder in RESERVED_FOLDERS)

_OWN: dict[type[BaseModel], list[Rule]] = {
    KL: _KL,
    RLOO: [_REWARD_ONLY],
    PPO: [
        Rule(
            "self.advantage.center != 'LeaveOneOut'",
            "PPO's advantages are per token, so no sample can be left out: set Batch, Group or None",
            at=".advantage.center",
        )
    ],
    Normalization: [
        Rule(
            "self.scale == 'None' || self.center in ['Group', 'LeaveOneOut'] || "
            "(self.scale == 'Batch' && self.center == 'Batch')",
            "needs a center over the same samples: set such a center, or scale to None",
            at=".scale",
        )
    ],
    Revision: [_holds("critique", "response"), _holds("revision", "response")],
    Comparison: [_holds("prompt", "first"), _holds("prompt", "second")],
    Judge: [_holds("prompt", "response")],
    Generate: [
        Rule(
            "self.keep == 'All' || self.samplesPerPrompt >= 2",
            "keep chooses among a prompt's samples: set at least 2",
            at=".samplesPerPrompt",
        ),
        Rule(
            "!has(self.compare) || self.samplesPerPrompt % 2 == 0",
            "samples are compared in pairs: set an even number",
            at=".samplesPerPrompt",
        ),
        Rule(
            "!has(self.compare) || self.keep == 'All'",
            "the comparison chooses, not the rewards: set All, or remove compare",
            at=".keep",
        ),
    ],
    Annotate: [
        Rule(
            "!has(self.lowest) || !has(self.highest) || self.lowest <= self.highest",
            "must not be above highest",
            at=".lowest",
        ),
        *(
            Rule(
                f"!self.roundToIntegers || !has(self.{name}) || self.{name} == double(int(self.{name}))",
                "must be a whole number where scores are rounded to whole numbers",
                at=f".{name}",
            )
            for name in ("lowest", "highest")
        ),
    ],
    Importance: [Rule("self.low < self.high", "must be below high", at=".low")],
    Target: one_of(["atLeast", "atMost"], "atLeast: 0.5"),
    Sampling: [
        Rule(
            "self.minTokens <= self.maxTokens",
            "must be at most maxTokens",
            at=".minTokens",
        )
    ],
    Rollout: [
        Rule(
            "self.minReplicas <= self.replicas",
            "must be at most replicas",
            at=".minReplicas",
        ),
        Rule(
            "!has(self.podTemplate) || self.placement == 'Own'",
            "workers without pods of their own have no template: set trainer.podTemplate",
            at=".podTemplate",
        ),
    ],
    Trainer: list(_layout()),
    Critic: [
        Rule(
            "self.headInit != 'RewardModel' || !has(self.model) || !has(self.model.config)",
            "a model with random weights has no reward head: set Zero",
            at=".headInit",
        )
    ],
    Reference: [
        Rule(
            "!has(self.podTemplate) || self.placement == 'Own'",
            "a reference without a pod of its own has no template: set trainer.podTemplate",
            at=".podTemplate",
        ),
        Rule(
            "!has(self.model) || self.placement != 'AdapterOff'",
            "a reference AdapterOff uses the policy's own first weights: remove it",
            at=".model",
        ),
    ],
    Reward: [
        *one_of(SOURCES),
        Rule(
            "has(self.model) || self.placement == 'Own'",
            "is for a single model; other sources run in their own process: set Own",
            at=".placement",
        ),
        Rule(
            "self.attributes.size() == 0 || has(self.model) || has(self.ensemble)",
            "is for models with several scores: remove it",
            at=".attributes",
        ),
        Rule(
            "!has(self.podTemplate) || self.placement == 'Own'",
            "a reward WithCritic has no pod of its own: set critic.podTemplate",
            at=".podTemplate",
        ),
        *_NAMES,
    ],
    ValidationScore: _NAMES,
    Tracker: one_of([alias(Tracker, name) for name in MEMBERS], "tensorBoard: {}"),
    EarlyStopping: [
        Rule(
            "self.metric.startsWith('val/')",
            "must name a validation metric, such as val/loss: they begin with val/",
            at=".metric",
        )
    ],
    PodMetadata: [
        Rule(
            "!has(self.labels) || "
            f"self.labels.all(key, !(key in [{_LABELS}]) && !key.startsWith({text(RESERVED_PREFIX)}))",
            f"{RESERVED_PREFIX}*, {' and '.join(RESERVED_LABELS)} are set by kubealign itself: remove them",
            at=".labels",
        )
    ],
    EnvSource: one_of(["secretKeyRef", "configMapKeyRef", "fieldRef"]),
    EnvVariable: [
        *one_of(["value", "valueFrom"], 'value: ""'),
        Rule(
            f"!self.name.startsWith({text(RESERVED_VARIABLES)})",
            "is set by kubealign itself: remove it",
            at=".name",
        ),
    ],
    Volume: [
        *one_of(["configMap", "secret", "persistentVolumeClaim", "emptyDir"]),
        Rule(
            f"!self.name.startsWith({text(RESERVED_VOLUMES)})",
            f"names that begin with {RESERVED_VOLUMES} are taken: choose another",
            at=".name",
        ),
    ],
    VolumeMount: [
        Rule(
            f"[{_FOLDERS}].all(own, self.mountPath != own && !self.mountPath.startsWith(own + '/'))",
            f"must not be or lie below {', '.join(RESERVED_FOLDERS)}: choose another folder",
            at=".mountPath",
        )
    ],
}


def rules_below(root: type[BaseModel]) -> Mapping[type[BaseModel], Sequence[Rule]]:
    """Return the rules of every model from the root down."""
    return {
        model: union(model) if issubclass(model, Union) else [*_inherited(model), *_OWN.get(model, [])]
        for model in set(_models(root))
    }


def _inherited(model: type[BaseModel]) -> list[Rule]:
    return [_MINIBATCHES, _ADAPTIVE, _COMPARED] if issubclass(model, OnPolicy) else []


def _models(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    yield model
    for field in model.model_fields.values():
        below = model_of(entry(field.annotation) or field.annotation)
        if below is not None:
            yield from _models(below)
