"""Which rows the job learns from, and how their columns are read."""

from enum import StrEnum
from typing import Annotated, TypeAlias

from pydantic import AfterValidator, Field, ValidationInfo

from kubealign.spec.base import MOST, FilePath, ObjectName, ShortText, Spec, Union, VolumePath
from kubealign.spec.paths import local_path

#: The name of a column of the data set.
Column: TypeAlias = ShortText


class Overlong(StrEnum):
    """What becomes of a row whose prompt is too long. Drop: left out and counted. Truncate: cut from
    the left. Fail: the job ends."""

    DROP = "Drop"
    TRUNCATE = "Truncate"
    FAIL = "Fail"


def _folder_or_name(value: str, info: ValidationInfo) -> str:
    folder = (info.context or {}).get("folder")
    is_folder = value.startswith(("./", "../", "~/")) or value in {".", ".."}
    return local_path(value, folder) if folder is not None and is_folder else value


class HuggingFaceDataset(Spec):
    """A data set of the Hugging Face hub, or a folder that `datasets.load_dataset` reads."""

    name: Annotated[str, Field(min_length=1, max_length=4096), AfterValidator(_folder_or_name)] = Field(
        description="Name on the hub, such as openai/gsm8k; a folder begins with ./ or /."
    )
    config: ShortText | None = Field(None, description="One of the data set's configurations.")
    split: ShortText = Field("train", description="One of its splits; slices such as train[:1%] are allowed.")
    revision: ShortText | None = Field(
        None, description="Commit, tag or branch; pin a commit to be able to repeat the job."
    )


class VolumeFile(Spec):
    """A file of a Kubernetes volume."""

    claim_name: ObjectName = Field(description="PersistentVolumeClaim.")
    path: VolumePath = Field(min_length=1, description="File within it.")


class DataSource(Union):
    """Where rows come from."""

    path: FilePath | None = Field(
        None,
        description="A .jsonl, .json or .parquet file; relative to the job's file when run on one machine.",
    )
    hugging_face: HuggingFaceDataset | None = Field(None, description="A data set of the Hugging Face hub.")
    volume: VolumeFile | None = Field(None, description="A file of a Kubernetes volume.")


class PromptText(Spec):
    """Prompts as plain text."""

    prompt: Column = Field("prompt", description="Column with the prompt.")


class PromptMessages(Spec):
    """Prompts as messages."""

    messages: Column = Field(
        "messages", description="Column with a list of {role, content}, the last one of the user."
    )


class PromptFormat(Union):
    """How a row holds a prompt: `text` as it stands, or `chat`, through the tokenizer's template."""

    text: PromptText | None = Field(None, description="Plain text.")
    chat: PromptMessages | None = Field(None, description="Messages.")


class DemonstrationText(Spec):
    """Prompt and response as plain text."""

    prompt: Column = Field("prompt", description="Column with the prompt.")
    response: Column = Field("response", description="Column with the response to imitate.")


class DemonstrationMessages(Spec):
    """A conversation whose last message is imitated."""

    messages: Column = Field(
        "messages", description="Column with a list of {role, content}, the last one of the assistant."
    )


class DemonstrationFormat(Union):
    """How a row holds a prompt and the response to imitate."""

    text: DemonstrationText | None = Field(None, description="Plain text.")
    chat: DemonstrationMessages | None = Field(None, description="Messages.")


class PreferenceText(Spec):
    """A prompt and two responses as plain text."""

    prompt: Column = Field("prompt", description="Column with the prompt.")
    chosen: Column = Field("chosen", description="Column with the better response.")
    rejected: Column = Field("rejected", description="Column with the worse response.")


class PreferenceMessages(Spec):
    """Two conversations that differ in their last message."""

    chosen: Column = Field(
        "chosen", description="Column with a list of {role, content} that ends with the better answer."
    )
    rejected: Column = Field("rejected", description="The same for the worse answer.")


class PreferenceFormat(Union):
    """How a row holds a prompt with a better and a worse response."""

    text: PreferenceText | None = Field(None, description="Plain text.")
    chat: PreferenceMessages | None = Field(None, description="Messages.")


class RatingText(Spec):
    """Prompt and response as plain text, with a number."""

    prompt: Column = Field("prompt", description="Column with the prompt.")
    response: Column = Field("response", description="Column with the response.")
    rating: Column = Field("rating", description="Column with the number.")


class RatingFormat(Union):
    """How a row holds a response with a number."""

    text: RatingText | None = Field(None, description="Plain text.")


class _DataSet(Spec):
    source: DataSource = Field(description="Where the rows come from.")
    max_tokens: int | None = Field(
        None, ge=1, le=MOST, description="Longest prompt, in tokens; null: what the context leaves."
    )
    overlong: Overlong = Field(
        Overlong.DROP, description="What becomes of rows with longer prompts; dropped ones are counted."
    )
    limit: int | None = Field(
        None, ge=1, le=MOST, description="Use only the first rows of the source, this many."
    )
    shuffle: bool = Field(True, description="A new order each epoch, seeded by the job. false: as they lie.")


class Prompts(_DataSet):
    """Rows with prompts; other columns are passed to the rewards."""

    format: PromptFormat = Field(PromptFormat(text=PromptText()), description="Which columns hold what.")


class Demonstrations(_DataSet):
    """Rows with prompts and responses to imitate."""

    format: DemonstrationFormat = Field(
        DemonstrationFormat(text=DemonstrationText()), description="Which columns hold what."
    )


class Preferences(_DataSet):
    """Rows with a better and a worse response."""

    format: PreferenceFormat = Field(
        PreferenceFormat(text=PreferenceText()), description="Which columns hold what."
    )


class Ratings(_DataSet):
    """Rows with a response and its rating."""

    format: RatingFormat = Field(RatingFormat(text=RatingText()), description="Which columns hold what.")


class Data(Union):
    """Rows. Which member fits depends on the algorithm."""

    prompts: Prompts | None = Field(None, description="For ppo, rloo and grpo.")
    demonstrations: Demonstrations | None = Field(None, description="For sft.")
    preferences: Preferences | None = Field(None, description="For rewardModel with bradleyTerry.")
    ratings: Ratings | None = Field(None, description="For rewardModel with regression.")
