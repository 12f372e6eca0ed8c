"""Which rows the job learns from, and how their columns are read."""

from enum import StrEnum
from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator, Field, ValidationInfo

from kubealign.spec.base import (
    AS_SET,
    MOST,
    TEMPLATE,
    FilePath,
    JobName,
    ObjectName,
    ShortText,
    Spec,
    Union,
    VolumePath,
    distinct,
)
from kubealign.spec.paths import local_path
from kubealign.spec.placeholders import well_formed

#: The name of a column of the data set.
Column: TypeAlias = ShortText

#: Text with columns' names in braces.
Template: TypeAlias = Annotated[
    str,
    # The pattern is for an API server: here is said which brace it is.
    Field(min_length=1, max_length=16384, json_schema_extra={"pattern": TEMPLATE}),
    AfterValidator(well_formed),
]


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


#: The file of a job's result that holds the rows it made: one JSON object a line.
JOB_ROWS = "data.jsonl"


class JobData(Spec):
    """The rows that another AlignmentJob of the same namespace made (generate or annotate), which must have
    succeeded before."""

    name: JobName = Field(description="metadata.name of the other job.")


class DataSource(Union):
    """Where rows come from."""

    path: FilePath | None = Field(
        None,
        description="A .jsonl, .json or .parquet file; relative to the job's file when run on one machine.",
    )
    hugging_face: HuggingFaceDataset | None = Field(None, description="A data set of the Hugging Face hub.")
    volume: VolumeFile | None = Field(None, description="A file of a Kubernetes volume.")
    job: JobData | None = Field(None, description="The rows that another job made.")


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


class Turns(StrEnum):
    """Which of the assistant's messages are imitated. Last: the last one. All: each. Weighted: those that do
    not say weight: 0."""

    LAST = "Last"
    ALL = "All"
    WEIGHTED = "Weighted"


class DemonstrationMessages(Spec):
    """A conversation whose last message is the assistant's."""

    messages: Column = Field(
        "messages", description="Column with a list of {role, content}, the last one of the assistant."
    )
    turns: Turns = Field(Turns.LAST, description="Which of the assistant's messages are imitated.")


class DemonstrationFormat(Union):
    """How a row holds a prompt and the response to imitate."""

    text: DemonstrationText | None = Field(None, description="Plain text.")
    chat: DemonstrationMessages | None = Field(None, description="Messages.")


class PreferenceText(Spec):
    """A prompt and two responses as plain text."""

    prompt: Column = Field("prompt", description="Column with the prompt.")
    chosen: Column = Field("chosen", description="Column with the better response.")
    rejected: Column = Field("rejected", description="Column with the worse response.")
    chosen_rating: Column | None = Field(
        None, description="Column with the better response's rating, for rpo; null: there is none."
    )
    rejected_rating: Column | None = Field(
        None, description="Column with the worse response's rating, for rpo; null: there is none."
    )


class PreferenceMessages(Spec):
    """Two conversations that differ in their last message."""

    chosen: Column = Field(
        "chosen", description="Column with a list of {role, content} that ends with the better answer."
    )
    rejected: Column = Field("rejected", description="The same for the worse answer.")
    chosen_rating: Column | None = Field(
        None, description="Column with the better answer's rating, for rpo; null: there is none."
    )
    rejected_rating: Column | None = Field(
        None, description="Column with the worse answer's rating, for rpo; null: there is none."
    )


class PreferenceFormat(Union):
    """How a row holds a prompt with a better and a worse response."""

    text: PreferenceText | None = Field(None, description="Plain text.")
    chat: PreferenceMessages | None = Field(None, description="Messages.")


#: One column for each score that is learned; they name the scores.
RatingColumns: TypeAlias = Annotated[
    list[Column], Field(min_length=1, max_length=64, json_schema_extra=AS_SET), distinct
]


class RatingText(Spec):
    """Prompt and response as plain text, with numbers."""

    prompt: Column = Field("prompt", description="Column with the prompt.")
    response: Column = Field("response", description="Column with the response.")
    ratings: RatingColumns = Field(
        ["rating"],
        description="Columns with numbers, each of which is a score of its own; null in a row: not known.",
    )


class RatingMessages(Spec):
    """A conversation whose last message is rated."""

    messages: Column = Field(
        "messages", description="Column with a list of {role, content}, the last one of the assistant."
    )
    ratings: RatingColumns = Field(
        ["rating"],
        description="Columns with numbers, each of which is a score of its own; null in a row: not known.",
    )


class RatingFormat(Union):
    """How a row holds a response with its ratings."""

    text: RatingText | None = Field(None, description="Plain text.")
    chat: RatingMessages | None = Field(None, description="Messages.")


class UnpairedText(Spec):
    """Prompt and response as plain text, and whether the response is good."""

    prompt: Column = Field("prompt", description="Column with the prompt.")
    response: Column = Field("response", description="Column with the response.")
    label: Column = Field("label", description="Column with true for a good response, false for a bad one.")


class UnpairedMessages(Spec):
    """A conversation, and whether its last message is good."""

    messages: Column = Field(
        "messages", description="Column with a list of {role, content}, the last one of the assistant."
    )
    label: Column = Field("label", description="Column with true for a good answer, false for a bad one.")


class UnpairedFormat(Union):
    """How a row holds a response and whether it is good."""

    text: UnpairedText | None = Field(None, description="Plain text.")
    chat: UnpairedMessages | None = Field(None, description="Messages.")


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
    values: dict[str, Any] = Field(
        default_factory=dict,
        max_length=64,
        description="Columns that every row has with these values, such as quality: 4, in place of its own "
        "of that name.",
    )
    template: Template | None = Field(
        None,
        description="The prompt, with the row's columns in braces, such as '{prompt} quality:{quality}'; "
        "{prompt} is the text prompt, or the user's last message. null: the prompt as it is.",
    )


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
    """Rows with a response and its ratings."""

    format: RatingFormat = Field(RatingFormat(text=RatingText()), description="Which columns hold what.")


class Unpaired(_DataSet):
    """Rows with a response that is good or bad."""

    format: UnpairedFormat = Field(
        UnpairedFormat(text=UnpairedText()), description="Which columns hold what."
    )


class Data(Union):
    """Rows. Which member fits depends on the algorithm."""

    prompts: Prompts | None = Field(None, description="For algorithms that sample.")
    demonstrations: Demonstrations | None = Field(
        None, description="For sft, distillation, spin and annotate."
    )
    preferences: Preferences | None = Field(
        None, description="For rewardModel with bradleyTerry, dpo and its kin."
    )
    ratings: Ratings | None = Field(None, description="For rewardModel with regression.")
    unpaired: Unpaired | None = Field(None, description="For kto.")
