"""Resolution of all models of a job: located or built, and checked against roles and one another."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from transformers import PretrainedConfig, PreTrainedTokenizerBase

from kubealign.role_specs import teacher_group
from kubealign.spec.algorithms import ResultKind
from kubealign.spec.algorithms.evaluation import CHECKPOINTS_PATH
from kubealign.spec.job import AlignmentJob
from kubealign.spec.paths import format_path
from kubealign.spec.sections.models import ChatTemplateSource, Model, ModelFromConfig
from kubealign.spec.sections.training import HeadInit
from kubealign_services.data.errors import DataError
from kubealign_services.data.models.context_length import context_length
from kubealign_services.data.models.model_builder import build_model
from kubealign_services.data.models.model_folders import (
    check_same_architecture,
    find_model_folder,
    is_reward_model,
    load_model_config,
    require_language_model,
    require_reward_model,
    require_scores,
    score_names,
)
from kubealign_services.data.models.process_rewards import check_process_reward
from kubealign_services.data.models.reward_roles import reward_of_role, reward_roles
from kubealign_services.data.models.text_rewards import TextReward, check_text_reward, log_text_reward
from kubealign_services.data.prepared_files import checkpoint_role
from kubealign_services.data.sources.job_datasets import JobDatasets
from kubealign_services.data.tokenization.chat_template import ensure_chat_template, read_chat_template
from kubealign_services.data.tokenization.tokenizers import (
    check_same_vocabulary,
    check_vocabulary,
    differing_tokens,
    ensure_pad_token,
    load_tokenizer,
    train_bpe_tokenizer,
    train_character_tokenizer,
)
from kubealign_services.scoring.attributes import UnknownAttribute, attribute_weights, check_same_scores

log = logging.getLogger(__name__)

#: Files of which a tokenizer has one at least. Older reward models have no tokenizer.json, and would read the
#: policy's ids as tokens of another vocabulary.
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")


@dataclass(frozen=True)
class ResolvedModels:
    """Resolved models.

    folders: role -> Hugging Face folder. context: the shortest context of the models that read the policy's
    tokens; None: unbounded. text_rewards: role -> the reward models that score text, because their vocabulary
    is not the policy's.
    """

    folders: dict[str, Path]
    tokenizer: PreTrainedTokenizerBase
    context: int | None
    text_rewards: Mapping[str, TextReward] = field(default_factory=dict)


def resolve_models(
    job: AlignmentJob, data: JobDatasets, folder: Path, results: Mapping[str, Path]
) -> ResolvedModels:
    """Locate or build every model of the job; built ones are written to `folder`.

    Roles are policy, and where the job has them reference, teacher, teacher-NAME, critic, checkpoint-STEP,
    and those of `reward_roles`. A model named twice is one folder. Raises DataError where one cannot be
    found, is of the wrong kind, or does not fit the policy's tokenizer.
    """
    required = _required_models(job)
    resolved: dict[str, Path] = {}
    folders: dict[str, Path] = {}
    for role, (path, model) in required.items():
        key = model.model_dump_json()
        if key not in resolved:
            resolved[key] = _resolve_folder(job, model, path, data, folder / role, results)
            if role == "policy":
                resolved[key] = _with_complete_tokenizer(
                    resolved[key], path, folder / role, _uses_chat(job), job.spec.policy.chat_template
                )
        folders[role] = resolved[key]
    tokenizer = load_tokenizer(folders["policy"], "spec.policy.model")
    configs = {role: load_model_config(folders[role], path) for role, (path, _) in required.items()}
    text_rewards = {
        role: reward
        for role, (path, _) in required.items()
        if (reward := _check_model(job, role, configs[role], folders[role], path, tokenizer)) is not None
    }
    check_reward_attributes(job, configs)
    if job.spec.algorithm.evaluate is not None:
        for step in job.spec.algorithm.evaluate.steps[1:]:
            role = checkpoint_role(step)
            check_same_architecture(configs[role], configs["policy"], required[role][0])
    contexts = [
        bound
        for role, config in configs.items()
        if role not in text_rewards and (bound := context_length(config)) is not None
    ]
    return ResolvedModels(folders, tokenizer, min(contexts, default=None), text_rewards)


def _required_models(job: AlignmentJob) -> dict[str, tuple[str, Model]]:
    """Return role -> (path in the spec, model), the policy first.

    A model that defaults to another entry's has that entry's path.
    """
    spec = job.spec
    required = {"policy": ("spec.policy.model", spec.policy.model)}
    if spec.effective_reference is not None and spec.effective_reference.model is not None:
        own = spec.reference is not None and spec.reference.model is not None
        required["reference"] = (
            "spec.reference.model" if own else "spec.policy.model",
            spec.effective_reference.model,
        )
    if spec.teacher is not None:
        required["teacher"] = ("spec.teacher.model", spec.teacher.model)
    for index, teacher in enumerate(spec.teachers):
        required[teacher_group(teacher.name)] = (f"spec.teachers[{index}].model", teacher.model)
    if spec.algorithm.evaluate is not None:
        for index, step, model in spec.algorithm.evaluate.numbered_models():
            path = format_path(("spec", *CHECKPOINTS_PATH, index, "model"))
            required[checkpoint_role(step)] = (path, model)
    for index, reward in enumerate(spec.rewards):
        path = f"spec.rewards[{index}]." + ("model" if reward.ensemble is None else "ensemble.models")
        for member, (role, model) in enumerate(zip(reward_roles(reward), reward.models, strict=True)):
            required[role] = (path if reward.ensemble is None else f"{path}[{member}]", model)
    if spec.effective_critic is not None and spec.effective_critic.model is not None:
        own = spec.critic is not None and spec.critic.model is not None
        first = next((index for index, reward in enumerate(spec.rewards) if reward.model is not None), 0)
        path = "spec.critic.model" if own else f"spec.rewards[{first}].model"
        required["critic"] = (path, spec.effective_critic.model)
    return required


def _resolve_folder(
    job: AlignmentJob,
    model: Model,
    spec_path: str,
    data: JobDatasets,
    folder: Path,
    results: Mapping[str, Path],
) -> Path:
    if model.config is None:
        return find_model_folder(model, spec_path, results)
    tokenizer = _build_tokenizer(model.config, f"{spec_path}.config.tokenizer", data)
    build_model(
        model.config.architecture, tokenizer, job.spec.seed, folder, f"{spec_path}.config.architecture"
    )
    return folder


def _build_tokenizer(spec: ModelFromConfig, spec_path: str, data: JobDatasets) -> PreTrainedTokenizerBase:
    if spec.tokenizer.path is not None:
        return load_tokenizer(Path(spec.tokenizer.path), f"{spec_path}.path")
    assert spec.tokenizer.train is not None
    bpe = spec.tokenizer.train.byte_level_bpe
    return (
        train_character_tokenizer(data.texts())
        if bpe is None
        else train_bpe_tokenizer(data.texts(), bpe.vocabulary_size)
    )


def _uses_chat(job: AlignmentJob) -> bool:
    sets = [job.spec.data, *(rows.data for rows in job.spec.held_out_rows)]
    return any(getattr(data.value.format, "chat", None) is not None for data in sets)


def _with_complete_tokenizer(
    source: Path, spec_path: str, folder: Path, chats: bool, template: ChatTemplateSource | None
) -> Path:
    """Return the source, or a folder of links to its files with a completed tokenizer.

    The tokenizer is completed where it lacks a pad token or a required chat template, and where the job has a
    chat template of its own. Results inherit that tokenizer.
    """
    tokenizer = load_tokenizer(source, spec_path)
    if template is not None:
        tokenizer.chat_template = read_chat_template(template)
    lacks_pad = ensure_pad_token(tokenizer)
    if lacks_pad:
        log.info("the tokenizer has no pad token: its end-of-sequence token is used")
    lacks_template = chats and ensure_chat_template(tokenizer)
    if lacks_template:
        log.info("the tokenizer has no chat template: the plain template is used")
    if not lacks_pad and not lacks_template and template is None:
        return source
    # The tokenizer is saved before the links are made, so that nothing is written through a link.
    tokenizer.save_pretrained(folder)
    for file in source.iterdir():
        if file.is_file() and not (folder / file.name).exists():
            (folder / file.name).symlink_to(file.absolute())
    return folder


def _check_model(
    job: AlignmentJob,
    role: str,
    config: PretrainedConfig,
    folder: Path,
    spec_path: str,
    policy_tokenizer: PreTrainedTokenizerBase,
) -> TextReward | None:
    """Return a reward model that scores text, because its vocabulary is not the policy's; None: the model
    reads the policy's tokens.

    Raises DataError for a model that does not fit.
    """
    own = None
    is_reward = role.startswith("reward-")
    files = _TOKENIZER_FILES if is_reward else _TOKENIZER_FILES[:1]
    if role != "policy" and any((folder / name).is_file() for name in files):
        own = load_tokenizer(folder, spec_path)
    if own is not None and is_reward and differing_tokens(own, policy_tokenizer):
        check_vocabulary(config, own, spec_path)
        check_model_kind(job, role, config, folder, spec_path)
        check_text_reward(job, role, spec_path)
        log_text_reward(role, spec_path, own)
        return TextReward.of_config(own, config)
    check_vocabulary(config, policy_tokenizer, spec_path)
    check_model_kind(job, role, config, folder, spec_path)
    if own is not None:
        remedy = ""
        if role == "critic" and spec_path != "spec.critic.model":
            remedy = ", and the critic starts from this one: set spec.critic.model to a model that does"
        check_same_vocabulary(own, policy_tokenizer, spec_path, remedy)
    return None


def check_model_kind(
    job: AlignmentJob, role: str, config: PretrainedConfig, folder: Path, spec_path: str
) -> None:
    """Check the model of one role. Raises DataError.

    Args:
        spec_path: Path of the model in the spec.
    """
    spec = job.spec
    if role.startswith("reward-"):
        require_reward_model(config, folder, spec_path)
        check_process_reward(reward_of_role(spec.rewards, role), config, spec_path)
    elif role == "critic":
        if spec.critic is not None and spec.critic.head_init is HeadInit.REWARD_MODEL:
            require_reward_model(config, folder, spec_path)
            if spec.critic_head_attributes is None:
                require_scores(config, ["value"], folder, spec_path)
    elif role == "policy" and spec.algorithm.value.makes is ResultKind.REWARD_MODEL:
        if is_reward_model(config):
            require_scores(config, spec.reward_score_names, folder, spec_path)
    elif role != "policy" or spec.algorithm.value.trains or spec.algorithm.value.samples:
        # Without training or sampling only the policy's tokenizer is used, so any model will do.
        require_language_model(config, folder, spec_path)


def check_reward_attributes(job: AlignmentJob, configs: Mapping[str, PretrainedConfig]) -> None:
    """Check that weighted attributes exist and that the models of an ensemble have the same scores.

    Args:
        configs: By role.

    Raises DataError.
    """
    for index, reward in enumerate(job.spec.rewards):
        scores = [score_names(configs[role]) for role in reward_roles(reward)]
        if not scores:
            continue
        try:
            check_same_scores(scores)
        except UnknownAttribute as error:
            raise DataError(f"spec.rewards[{index}].ensemble: {error}") from error
        try:
            attribute_weights(scores[0], reward.attributes)
        except UnknownAttribute as error:
            raise DataError(f"spec.rewards[{index}].attributes: {error}") from error
