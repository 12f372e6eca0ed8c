"""Sources of models and tokenizers: a path, the hub, object storage, a volume, a result, or a config."""

from typing import Any

from pydantic import Field

from kubealign.spec.base import (
    FilePath,
    JobName,
    ObjectName,
    ShortText,
    SpecModel,
    SpecUnion,
    StorageUri,
    VolumePath,
)


class HuggingFaceModel(SpecModel):
    """A repository of the Hugging Face hub."""

    repo: ShortText = Field(description="Name on the hub, such as acme/sft-7b.")
    revision: ShortText | None = Field(
        None, description="Commit, tag or branch; pin a commit to make the job reproducible."
    )


class VolumeModel(SpecModel):
    """A folder in a Kubernetes volume."""

    claim_name: ObjectName = Field(description="Name of the PersistentVolumeClaim.")
    path: VolumePath = Field("", description="Folder within the volume; empty: the root.")


class JobModel(SpecModel):
    """The result of another AlignmentJob of the same namespace, which must have succeeded."""

    name: JobName = Field(description="metadata.name of the other job.")


class CharacterTokenizer(SpecModel):
    """One token for every character in the data."""


class ByteLevelBpeTokenizer(SpecModel):
    """Byte-level byte-pair encoding, trained on the job's data."""

    vocabulary_size: int = Field(
        2000, ge=260, le=500_000, description="Number of tokens, including the special tokens."
    )


class TrainedTokenizer(SpecUnion):
    """A tokenizer trained on the job's own data at the start of the job."""

    characters: CharacterTokenizer | None = Field(None, description="Character-level tokenizer.")
    byte_level_bpe: ByteLevelBpeTokenizer | None = Field(None, description="Byte-pair encoding.")


class TokenizerSource(SpecUnion):
    """Source of the tokenizer of a model with random weights."""

    path: FilePath | None = Field(
        None,
        description="Folder of a Hugging Face tokenizer; relative to the job's file on one machine.",
    )
    train: TrainedTokenizer | None = Field(None, description="Train a tokenizer when the job starts.")


class ModelFromConfig(SpecModel):
    """A model with random weights, seeded by the job, for which nothing is downloaded."""

    architecture: dict[str, Any] = Field(
        max_length=256,
        description="A Hugging Face config: model_type (llama, qwen2, ...) and its sizes. The "
        "vocabulary size and the special token ids are taken from the tokenizer.",
    )
    tokenizer: TokenizerSource = Field(description="The model's tokenizer.")


class Model(SpecUnion):
    """A causal language model with its tokenizer in Hugging Face format."""

    path: FilePath | None = Field(
        None,
        description="Folder on this machine or in the image; relative to the job's file on one machine.",
    )
    hugging_face: HuggingFaceModel | None = Field(None, description="A repository of the Hugging Face hub.")
    uri: StorageUri | None = Field(
        None,
        description="A folder in object storage, such as s3://bucket/models/base, which the preparation "
        "downloads once; of an address of a job's copies (checkpoint.uri) its newest result. Endpoint and "
        "credentials come from the environment of the preparation.",
    )
    volume: VolumeModel | None = Field(None, description="A folder in a Kubernetes volume.")
    job: JobModel | None = Field(None, description="The result of another job.")
    config: ModelFromConfig | None = Field(None, description="Random weights of the given architecture.")


class ChatTemplateSource(SpecUnion):
    """A Jinja template that renders messages, and tools, as Hugging Face tokenizers do."""

    text: str | None = Field(None, min_length=1, max_length=65_536, description="The template itself.")
    path: FilePath | None = Field(
        None,
        description="A file with the template; relative to the job's file on one machine.",
    )


class Policy(SpecModel):
    """The model to align."""

    model: Model = Field(description="Initial weights.")
    chat_template: ChatTemplateSource | None = Field(
        None,
        description="Replaces the chat template of the policy's tokenizer, in the job and in its result. "
        "null: the tokenizer's own, or a plain one where it has none.",
    )
