"""Model folders: resolves a model of the spec to a Hugging Face folder on disk and inspects its config."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError
from transformers import AutoConfig, PretrainedConfig

from kubealign.spec.model_types import folder_problem
from kubealign.spec.sections.models import HuggingFaceModel, Model
from kubealign_services.data.errors import DataError
from kubealign_services.data.sources.downloads import MODEL_FILES
from kubealign_services.data.sources.volumes import mounted_path

_CLASSIFICATION = "ForSequenceClassification"
#: Fields of a config that determine the shapes of the weights.
_SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "tie_word_embeddings",
)


def find_model_folder(model: Model, spec_path: str, results: Mapping[str, Path]) -> Path:
    """Return the folder of a model that is not built from a config.

    Sources are a path, a hub repository (downloaded, or in the local cache), an address in object storage
    (downloaded before), a mounted volume, and another job's result.

    Args:
        spec_path: Path of the model in the spec, for errors.
        results: Job name -> folder of its result, and address -> folder of its download.

    Raises DataError where the folder is missing or holds no safetensors, or the hub does not respond.
    """
    if model.hugging_face is not None:
        return _check_folder(
            _download(model.hugging_face, f"{spec_path}.huggingFace"), f"{spec_path}.huggingFace"
        )
    if model.uri is not None:
        return _check_folder(results[model.uri], f"{spec_path}.uri")
    if model.volume is not None:
        spec_path = f"{spec_path}.volume"
        return _check_folder(mounted_path(model.volume.claim_name, model.volume.path, spec_path), spec_path)
    if model.job is not None:
        if model.job.name not in results:
            available = ", ".join(sorted(results)) or "none"
            raise DataError(
                f"{spec_path}.job.name: there is no result of a job {model.job.name}; known are: {available}"
            )
        return _check_folder(results[model.job.name], f"{spec_path}.job")
    if model.path is None:
        raise DataError(f"{spec_path}: a model built from a config has no folder yet")
    return _check_folder(Path(model.path), f"{spec_path}.path")


def load_model_config(folder: Path, spec_path: str) -> PretrainedConfig:
    """Load the folder's config. Raises DataError where it cannot be read."""
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{spec_path}: the config.json of {folder} cannot be used: {error}") from error
    return config


def check_same_architecture(config: PretrainedConfig, policy: PretrainedConfig, spec_path: str) -> None:
    """Raise DataError unless a model has the type and sizes of the policy, whose engine loads its weights."""
    for name in ("model_type", *_SIZES):
        value, expected = getattr(config, name, None), getattr(policy, name, None)
        if value != expected:
            raise DataError(
                f"{spec_path}: its {name} is {value}, the policy's is {expected}: name weights of the same "
                "architecture, or evaluate the model in a job of its own"
            )


def is_reward_model(config: PretrainedConfig) -> bool:
    """Return whether the model is a sequence-classification checkpoint."""
    return any(name.endswith(_CLASSIFICATION) for name in config.architectures or [])


def require_reward_model(config: PretrainedConfig, folder: Path, spec_path: str) -> None:
    """Raise DataError unless the checkpoint scores sequences."""
    if not is_reward_model(config):
        raise DataError(
            f"{spec_path}: {folder} holds {_describe_architecture(config)}, not a reward model: "
            "name a sequence-classification checkpoint, or the result of a rewardModel job"
        )


def require_scores(config: PretrainedConfig, expected: Sequence[str], folder: Path, spec_path: str) -> None:
    """Raise DataError unless a reward model has these scores, in this order.

    A single score may have another name.
    """
    names = score_names(config)
    if len(names) != len(expected) or (len(names) > 1 and names != tuple(expected)):
        raise DataError(
            f"{spec_path}: {folder} is a reward model with the scores {', '.join(names)}; "
            f"expected are {', '.join(expected)}"
        )


def score_names(config: PretrainedConfig) -> tuple[str, ...]:
    """Return the names of a reward model's scores, in the order of its outputs."""
    names = {int(index): name for index, name in (config.id2label or {}).items()}
    return tuple(names.get(index, f"LABEL_{index}") for index in range(config.num_labels or 0))


def require_language_model(config: PretrainedConfig, folder: Path, spec_path: str) -> None:
    """Raise DataError for a reward model: it has no language-model head."""
    if is_reward_model(config):
        raise DataError(
            f"{spec_path}: {folder} holds {_describe_architecture(config)}, "
            "a reward model, not a language model"
        )


def _describe_architecture(config: PretrainedConfig) -> str:
    return " and ".join(config.architectures or [f"a {config.model_type} of no named class"])


def _check_folder(folder: Path, spec_path: str) -> Path:
    if not folder.is_dir():
        raise DataError(f"{spec_path}: there is no folder {folder}")
    if not (folder / "config.json").is_file():
        raise DataError(f"{spec_path}: {folder} is not a Hugging Face model: it has no config.json")
    problem = folder_problem(folder)
    if problem is not None:
        raise DataError(f"{spec_path}: {folder}: {problem}")
    if not any(folder.glob("*.safetensors")):
        pickled = any(folder.glob("*.bin"))
        cause = (
            "its weights are pickled (.bin): save them as safetensors" if pickled else "it has no safetensors"
        )
        raise DataError(f"{spec_path}: {folder} has no weights that can be read: {cause}")
    return folder


def _download(spec: HuggingFaceModel, spec_path: str) -> Path:
    try:
        return Path(snapshot_download(spec.repo, revision=spec.revision, allow_patterns=list(MODEL_FILES)))
    except (OSError, ValueError, HfHubHTTPError) as error:
        revision = f" at {spec.revision}" if spec.revision else ""
        cause = " ".join(str(error).split())
        raise DataError(f"{spec_path}: {spec.repo}{revision} cannot be fetched: {cause}") from error
