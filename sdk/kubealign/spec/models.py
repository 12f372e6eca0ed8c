"""Where a model comes from: a path, a hub, a volume, another job's result, or a config."""

from typing import Any

from pydantic import Field

from kubealign.spec.base import FilePath, JobName, ObjectName, ShortText, Spec, Union, VolumePath


class HuggingFaceModel(Spec):
    """A repository of the Hugging Face hub."""

    repo: ShortText = Field(description="Name on the hub, such as acme/sft-7b.")
    revision: ShortText | None = Field(None, description="Commit, tag or branch; a commit can be repeated.")


class VolumeModel(Spec):
    """A folder of a Kubernetes volume."""

    claim_name: ObjectName = Field(description="PersistentVolumeClaim.")
    path: VolumePath = Field("", description="Folder within it; empty: its root.")


class JobModel(Spec):
    """The result of another AlignmentJob of the same namespace, which must have succeeded before."""

    name: JobName = Field(description="metadata.name of the other job.")


class CharacterTokenizer(Spec):
    """One token for every character that the data holds."""


class ByteLevelBpeTokenizer(Spec):
    """Byte-level byte-pair encoding, trained on the job's data."""

    vocabulary_size: int = Field(2000, ge=260, le=500_000, description="Tokens, the special ones included.")


class TrainedTokenizer(Union):
    """A tokenizer trained on the job's own data when it starts."""

    characters: CharacterTokenizer | None = Field(None, description="One token a character.")
    byte_level_bpe: ByteLevelBpeTokenizer | None = Field(None, description="Byte-pair encoding.")


class TokenizerSource(Union):
    """Where the tokenizer of a model made from a config comes from."""

    path: FilePath | None = Field(
        None,
        description="Folder with a Hugging Face tokenizer; relative to the job's file on one machine.",
    )
    train: TrainedTokenizer | None = Field(None, description="Trained when the job starts.")


class ModelFromConfig(Spec):
    """A model with random weights (seeded by the job), so that nothing need be downloaded."""

    architecture: dict[str, Any] = Field(
        max_length=256,
        description="A Hugging Face config: model_type (llama, qwen2, ...) and its sizes. The vocabulary's "
        "size and the special token ids are taken from the tokenizer.",
    )
    tokenizer: TokenizerSource = Field(description="Its tokenizer.")


class Model(Union):
    """A causal language model with its tokenizer, in Hugging Face form."""

    path: FilePath | None = Field(
        None,
        description="Folder on this machine or in the image; relative to the job's file on one machine.",
    )
    hugging_face: HuggingFaceModel | None = Field(None, description="A repository of the Hugging Face hub.")
    volume: VolumeModel | None = Field(None, description="A folder of a Kubernetes volume.")
    job: JobModel | None = Field(None, description="The result of another job.")
    config: ModelFromConfig | None = Field(None, description="Random weights of a given shape.")


class Policy(Spec):
    """The model that is aligned."""

    model: Model = Field(description="Its first weights.")
