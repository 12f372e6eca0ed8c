"""All models of a job: found or made, and checked against one another."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from transformers import PretrainedConfig, PreTrainedTokenizerBase

from kubealign.spec.job import AlignmentJob
from kubealign.spec.models import Model, ModelFromConfig
from kubealign_services.data.architecture import make_model
from kubealign_services.data.chat import ensure_template
from kubealign_services.data.model_kinds import check_attributes, check_kind
from kubealign_services.data.model_roles import reward_roles
from kubealign_services.data.models import (
    context_tokens,
    existing_folder,
    model_config,
)
from kubealign_services.data.opened import OpenedData
from kubealign_services.data.tokenizers import (
    check_same_vocabulary,
    check_vocabulary,
    ensure_pad_token,
    load_tokenizer,
    train_byte_level_bpe,
    train_characters,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Models:
    """folders: role -> Hugging Face folder. context: the shortest of the models', in tokens; None:
    unbounded."""

    folders: dict[str, Path]
    tokenizer: PreTrainedTokenizerBase
    context: int | None


def resolve_models(job: AlignmentJob, data: OpenedData, folder: Path, results: Mapping[str, Path]) -> Models:
    """Find or make every model of the job; those that are made lie in `folder`.

    Roles are policy, and where the job has them reference, teacher, critic, and those of `reward_roles`. The
    same model named twice is one folder. Raises DataError where one cannot be found, is of the wrong kind, or
    does not fit the policy's tokenizer.
    """
    wanted = _wanted(job)
    found: dict[str, Path] = {}
    folders: dict[str, Path] = {}
    for role, (place, model) in wanted.items():
        key = model.model_dump_json()
        if key not in found:
            found[key] = _folder(job, model, place, data, folder / role, results)
            if role == "policy":
                found[key] = _with_usable_tokenizer(found[key], place, _chats(job), folder / role)
        folders[role] = found[key]
    tokenizer = load_tokenizer(folders["policy"], "spec.policy.model")
    configs = {role: model_config(folders[role], place) for role, (place, _) in wanted.items()}
    for role, (place, _) in wanted.items():
        _check(job, role, configs[role], folders[role], place, tokenizer)
    check_attributes(job, configs)
    contexts = [bound for config in configs.values() if (bound := context_tokens(config)) is not None]
    return Models(folders, tokenizer, min(contexts, default=None))


def _wanted(job: AlignmentJob) -> dict[str, tuple[str, Model]]:
    """role -> (path in the spec, model), the policy first. A model that another's entry stands for has
    that entry's path."""
    spec = job.spec
    wanted = {"policy": ("spec.policy.model", spec.policy.model)}
    if spec.effective_reference is not None and spec.effective_reference.model is not None:
        own = spec.reference is not None and spec.reference.model is not None
        wanted["reference"] = (
            "spec.reference.model" if own else "spec.policy.model",
            spec.effective_reference.model,
        )
    if spec.teacher is not None:
        wanted["teacher"] = ("spec.teacher.model", spec.teacher.model)
    for index, reward in enumerate(spec.rewards):
        place = f"spec.rewards[{index}]." + ("model" if reward.ensemble is None else "ensemble.models")
        for member, (role, model) in enumerate(zip(reward_roles(reward), reward.models, strict=True)):
            wanted[role] = (place if reward.ensemble is None else f"{place}[{member}]", model)
    if spec.effective_critic is not None and spec.effective_critic.model is not None:
        own = spec.critic is not None and spec.critic.model is not None
        first = next((index for index, reward in enumerate(spec.rewards) if reward.model is not None), 0)
        place = "spec.critic.model" if own else f"spec.rewards[{first}].model"
        wanted["critic"] = (place, spec.effective_critic.model)
    return wanted


def _folder(
    job: AlignmentJob, model: Model, place: str, data: OpenedData, folder: Path, results: Mapping[str, Path]
) -> Path:
    if model.config is None:
        return existing_folder(model, place, results)
    tokenizer = _tokenizer(model.config, f"{place}.config.tokenizer", data)
    make_model(model.config.architecture, tokenizer, job.spec.seed, folder, f"{place}.config.architecture")
    return folder


def _tokenizer(spec: ModelFromConfig, place: str, data: OpenedData) -> PreTrainedTokenizerBase:
    if spec.tokenizer.path is not None:
        return load_tokenizer(Path(spec.tokenizer.path), f"{place}.path")
    assert spec.tokenizer.train is not None
    bpe = spec.tokenizer.train.byte_level_bpe
    return (
        train_characters(data.texts())
        if bpe is None
        else train_byte_level_bpe(data.texts(), bpe.vocabulary_size)
    )


def _chats(job: AlignmentJob) -> bool:
    sets = [job.spec.data, *([job.spec.validation.data] if job.spec.validation else [])]
    return any(getattr(data.value.format, "chat", None) is not None for data in sets)


def _with_usable_tokenizer(source: Path, place: str, chats: bool, folder: Path) -> Path:
    """The source; or, where its tokenizer lacks a pad token or a chat template that is needed, a folder
    of links to its files with the tokenizer's own made good. Results carry that tokenizer on."""
    tokenizer = load_tokenizer(source, place)
    lacks_pad = ensure_pad_token(tokenizer)
    if lacks_pad:
        log.info("the tokenizer has no pad token: its end-of-sequence token stands for one")
    lacks_template = chats and ensure_template(tokenizer)
    if lacks_template:
        log.info("the tokenizer has no chat template: messages are written plainly")
    if not lacks_pad and not lacks_template:
        return source
    # First the tokenizer, then links for the rest: nothing is ever written through a link.
    tokenizer.save_pretrained(folder)
    for file in source.iterdir():
        if file.is_file() and not (folder / file.name).exists():
            (folder / file.name).symlink_to(file.absolute())
    return folder


def _check(
    job: AlignmentJob,
    role: str,
    config: PretrainedConfig,
    folder: Path,
    place: str,
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    check_vocabulary(config, tokenizer, place)
    check_kind(job, role, config, folder, place)
    if role != "policy" and (folder / "tokenizer.json").is_file():
        check_same_vocabulary(load_tokenizer(folder, place), tokenizer, place)
