"""From where a job says that a model comes from, to a Hugging Face folder on this disk; and what is in it."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError
from transformers import AutoConfig, PretrainedConfig

from kubealign.spec.models import HuggingFaceModel, Model
from kubealign_services.data.errors import DataError
from kubealign_services.data.volumes import mounted

# No *.bin: those are pickles.
_FILES = ["*.safetensors", "*.json", "*.jinja", "*.txt", "*.model"]
_CLASSIFICATION = "ForSequenceClassification"


def existing_folder(model: Model, place: str, results: Mapping[str, Path]) -> Path:
    """The folder of a model that is not made from a config: a path, a hub's repository (fetched, or
    found in the local cache), a mounted volume, or another job's result.

    place: path of the model in the spec, for errors. results: name of a job -> folder of its result. Raises
    DataError where there is none, it holds no safetensors, or the hub does not answer.
    """
    if model.hugging_face is not None:
        return _checked(_fetched(model.hugging_face, f"{place}.huggingFace"), f"{place}.huggingFace")
    if model.volume is not None:
        place = f"{place}.volume"
        return _checked(mounted(model.volume.claim_name, model.volume.path, place), place)
    if model.job is not None:
        if model.job.name not in results:
            known = ", ".join(sorted(results)) or "none"
            raise DataError(
                f"{place}.job.name: there is no result of a job {model.job.name}; known are: {known}"
            )
        return _checked(results[model.job.name], f"{place}.job")
    if model.path is None:
        raise DataError(f"{place}: a model made from a config lies nowhere yet")
    return _checked(Path(model.path), f"{place}.path")


def model_config(folder: Path, place: str) -> PretrainedConfig:
    """The folder's config. Raises DataError where it cannot be read."""
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{place}: the config.json of {folder} cannot be used: {error}") from error
    return config


def context_tokens(config: PretrainedConfig) -> int | None:
    """Longest sequence that the model was made for; None: it names no bound."""
    bound = getattr(config.get_text_config(), "max_position_embeddings", None)
    return int(bound) if isinstance(bound, int) and bound > 0 else None


def is_reward_model(config: PretrainedConfig) -> bool:
    """Whether it is a sequence-classification checkpoint."""
    return any(name.endswith(_CLASSIFICATION) for name in config.architectures or [])


def require_reward_model(config: PretrainedConfig, folder: Path, place: str) -> None:
    """Raise DataError unless the checkpoint scores sequences."""
    if not is_reward_model(config):
        raise DataError(
            f"{place}: {folder} holds {_what(config)}, not a reward model: name a sequence-classification "
            "checkpoint, or the result of a rewardModel job"
        )


def require_scores(config: PretrainedConfig, wanted: Sequence[str], folder: Path, place: str) -> None:
    """Raise DataError unless a reward model's scores are these, in this order. A single one may be called
    otherwise."""
    found = score_names(config)
    if len(found) != len(wanted) or (len(found) > 1 and found != tuple(wanted)):
        raise DataError(
            f"{place}: {folder} is a reward model with the scores {', '.join(found)}; "
            f"wanted are {', '.join(wanted)}"
        )


def score_names(config: PretrainedConfig) -> tuple[str, ...]:
    """A reward model's scores, by name, in the order of its outputs."""
    names = {int(index): name for index, name in (config.id2label or {}).items()}
    return tuple(names.get(index, f"LABEL_{index}") for index in range(config.num_labels or 0))


def require_language_model(config: PretrainedConfig, folder: Path, place: str) -> None:
    """Raise DataError for a reward model: it has no head over the vocabulary."""
    if is_reward_model(config):
        raise DataError(f"{place}: {folder} holds {_what(config)}, a reward model, not a language model")


def _what(config: PretrainedConfig) -> str:
    return " and ".join(config.architectures or [f"a {config.model_type} of no named class"])


def _checked(folder: Path, place: str) -> Path:
    if not folder.is_dir():
        raise DataError(f"{place}: there is no folder {folder}")
    if not (folder / "config.json").is_file():
        raise DataError(f"{place}: {folder} is not a Hugging Face model: it has no config.json")
    if not any(folder.glob("*.safetensors")):
        pickled = any(folder.glob("*.bin"))
        cause = (
            "its weights are pickled (.bin): save them as safetensors" if pickled else "it has no safetensors"
        )
        raise DataError(f"{place}: {folder} has no weights that can be read: {cause}")
    return folder


def _fetched(spec: HuggingFaceModel, place: str) -> Path:
    try:
        return Path(snapshot_download(spec.repo, revision=spec.revision, allow_patterns=_FILES))
    except (OSError, ValueError, HfHubHTTPError) as error:
        revision = f" at {spec.revision}" if spec.revision else ""
        cause = " ".join(str(error).split())
        raise DataError(f"{place}: {spec.repo}{revision} cannot be fetched: {cause}") from error
