"""Training and validation data: sources of rows and the columns to read."""

from enum import StrEnum
from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator, Field, ValidationInfo, model_validator

from kubealign.spec.base import (
    LIST_SET_SCHEMA,
    MAX_INT32,
    TEMPLATE_PATTERN,
    EntryName,
    FilePath,
    JobName,
    ObjectName,
    ShortText,
    SpecModel,
    SpecUnion,
    StorageFilesUri,
    TeacherName,
    VolumePath,
    distinct_items,
    field_errors,
    list_map_schema,
    require_exactly_one,
    unique_by,
)
from kubealign.spec.paths import resolve_path
from kubealign.spec.placeholders import check_placeholders
from kubealign.spec.sections.curriculum import PromptCurriculum

#: Name of a column of the data set.
Column: TypeAlias = ShortText

#: Text with column names in braces.
Template: TypeAlias = Annotated[
    str,
    # The pattern is for the API server only; the validator's error names the wrong brace.
    Field(min_length=1, max_length=16384, json_schema_extra={"pattern": TEMPLATE_PATTERN}),
    AfterValidator(check_placeholders),
]


class OverlongPolicy(StrEnum):
    """Drop: the row is skipped and counted. Truncate: the prompt is cut on the left. Fail: the job fails."""

    DROP = "Drop"
    TRUNCATE = "Truncate"
    FAIL = "Fail"


def _resolve_dataset_name(value: str, info: ValidationInfo) -> str:
    """Make the path of a data set folder absolute; names on the hub stay unchanged."""
    folder = (info.context or {}).get("folder")
    is_folder = value.startswith(("./", "../", "~/")) or value in {".", ".."}
    return resolve_path(value, folder) if folder is not None and is_folder else value


class HuggingFaceDataset(SpecModel):
    """A data set of the Hugging Face hub, or a folder that `datasets.load_dataset` reads."""

    name: Annotated[str, Field(min_length=1, max_length=4096), AfterValidator(_resolve_dataset_name)] = Field(
        description="Name on the hub, such as openai/gsm8k; a folder begins with ./ or /."
    )
    config: ShortText | None = Field(None, description="Configuration of the data set.")
    split: ShortText = Field(
        "train", description="Split of the data set; slices such as train[:1%] are allowed."
    )
    revision: ShortText | None = Field(
        None, description="Commit, tag or branch; pin a commit to make the job reproducible."
    )


#: Bounds of a list of files; a glob in it matches any number of files.
_FILE_LIST = Field(min_length=1, max_length=256)

FileList: TypeAlias = Annotated[list[FilePath], _FILE_LIST, distinct_items]
VolumeFileList: TypeAlias = Annotated[
    list[Annotated[VolumePath, Field(min_length=1)]], _FILE_LIST, distinct_items
]


class VolumeFileSource(SpecModel):
    """Files in a Kubernetes volume. Exactly one of path and paths must be set."""

    claim_name: ObjectName = Field(description="Name of the PersistentVolumeClaim.")
    path: VolumePath | None = Field(
        None,
        min_length=1,
        description="File within the volume, or a glob such as shards/*.parquet, whose files are "
        "read sorted by name.",
    )
    paths: VolumeFileList | None = Field(
        None,
        json_schema_extra=LIST_SET_SCHEMA,
        description="Several files or globs within the volume, of one format, read in this order.",
    )

    @model_validator(mode="after")
    def _one(self) -> "VolumeFileSource":
        """Check that either a path or a list of paths is set."""
        require_exactly_one(self, ["path", "paths"], example="path: train.parquet")
        return self


#: File in the result of a job that holds its rows: one JSON object per line.
RESULT_ROWS_FILE = "data.jsonl"


class JobDataSource(SpecModel):
    """The rows produced by another AlignmentJob of the same namespace.

    The other job (generate or annotate) must have succeeded.
    """

    name: JobName = Field(description="metadata.name of the other job.")


class DataSource(SpecUnion):
    """Source of the rows."""

    path: FilePath | None = Field(
        None,
        description="A .jsonl, .json or .parquet file, or a glob such as shards/*.jsonl, whose files are "
        "read sorted by name; relative to the job's file on one machine.",
    )
    paths: FileList | None = Field(
        None,
        json_schema_extra=LIST_SET_SCHEMA,
        description="Several files or globs, of one format, read in this order.",
    )
    hugging_face: HuggingFaceDataset | None = Field(None, description="A data set of the Hugging Face hub.")
    uri: StorageFilesUri | None = Field(
        None,
        description="A .jsonl, .json or .parquet object in object storage, or a glob such as "
        "s3://bucket/shards/*.parquet, where * matches within one part of the path. The preparation "
        "downloads the objects once. Endpoint and credentials come from its environment.",
    )
    volume: VolumeFileSource | None = Field(None, description="Files in a Kubernetes volume.")
    job: JobDataSource | None = Field(None, description="The rows produced by another job.")


#: Column of the prepared rows of a mixture that holds the name of the row's entry.
SOURCE_COLUMN = "source"


class MixtureEntry(SpecModel):
    """One source of a mixture, and its weight."""

    name: EntryName = Field(
        description="Unique in the mixture; the rows get it in the column source, and the metrics name it."
    )
    source: DataSource = Field(description="Source of the rows.")
    weight: float = Field(
        1.0,
        gt=0,
        description="Share of the rows of each epoch, relative to the sum of the mixture's weights. A "
        "smaller source is repeated within an epoch, and a larger one continues in the next epoch.",
    )
    limit: int | None = Field(
        None, ge=1, le=MAX_INT32, description="Use only the first rows of the source, this many."
    )
    system_prompt: str | None = Field(
        None,
        min_length=1,
        max_length=16384,
        description="System message put before the messages of every row that has none; only with "
        "format.chat. null: none is added.",
    )


class PromptMixtureEntry(MixtureEntry):
    """One source of a mixture of prompts."""

    teacher: TeacherName | None = Field(
        None,
        description="Only with teachers: name of the teacher that judges the responses to these prompts.",
    )


Mixture: TypeAlias = Annotated[
    list[MixtureEntry],
    Field(min_length=1, max_length=64),
    unique_by("name"),
]

PromptMixture: TypeAlias = Annotated[
    list[PromptMixtureEntry],
    Field(min_length=1, max_length=64),
    unique_by("name"),
]


#: Arguments of apply_chat_template itself: the template must not receive them under these names.
RESERVED_TEMPLATE_KWARGS = frozenset(
    {
        *("messages", "conversation", "conversations", "tools", "chat_template", "tokenize"),
        *("add_generation_prompt", "continue_final_message", "return_dict", "return_tensors"),
        *("return_assistant_tokens_mask", "padding", "truncation", "max_length", "tokenizer_kwargs"),
        "sanitize_control_tokens",
    }
)


class _ChatMessages(SpecModel):
    """Fields of all formats with chat messages."""

    tools: Column | None = Field(
        None,
        description="Column with the row's tools for the chat template: a list of JSON schemas, or that list "
        "as JSON text; null or empty in a row: none. null: no row has tools.",
    )
    chat_template_kwargs: dict[str, Any] = Field(
        default_factory=dict,
        max_length=64,
        description="Variables of the chat template, such as enable_thinking: false, passed wherever a "
        "conversation of these rows is rendered.",
    )

    @model_validator(mode="after")
    def _template_variables(self) -> "_ChatMessages":
        """Check that no variable is an argument of the rendering itself."""
        problems = [
            (
                ("chatTemplateKwargs", name),
                value,
                "is an argument of the rendering, not a variable of the template: remove it",
            )
            for name, value in self.chat_template_kwargs.items()
            if name in RESERVED_TEMPLATE_KWARGS
        ]
        if problems:
            raise field_errors(type(self).__name__, *problems)
        return self


#: Description of the member `tokens` of every format.
_TOKENS = "Token ids of the policy's tokenizer, used as they are: no token is added at either end."


class PromptText(SpecModel):
    """Prompts as plain text."""

    prompt: Column = Field("prompt", description="Column of the prompt.")


class PromptMessages(_ChatMessages):
    """Prompts as chat messages."""

    messages: Column = Field(
        "messages",
        description="Column of a list of {role, content} messages that ends with a user's message or a "
        "tool's result, or of a text, which is one message of the user.",
    )


class PromptTokens(SpecModel):
    """Prompts as token ids."""

    prompt: Column = Field("prompt_ids", description="Column of the prompt's ids.")


class PromptFormat(SpecUnion):
    """Format of the prompts.

    `text` as it is, `chat` through the tokenizer's chat template, or `tokens` as ids of its tokenizer.
    """

    text: PromptText | None = Field(None, description="Plain text.")
    chat: PromptMessages | None = Field(None, description="Chat messages.")
    tokens: PromptTokens | None = Field(None, description=_TOKENS)


class DemonstrationText(SpecModel):
    """Prompt and response as plain text."""

    prompt: Column = Field("prompt", description="Column of the prompt.")
    response: Column = Field("response", description="Column of the target response.")


class ImitatedTurns(StrEnum):
    """Last: the last message. All: every message. Weighted: every message without weight: 0."""

    LAST = "Last"
    ALL = "All"
    WEIGHTED = "Weighted"


class DemonstrationMessages(_ChatMessages):
    """A conversation that ends with an assistant message."""

    messages: Column = Field(
        "messages",
        description="Column of a list of {role, content} messages that ends with an assistant message.",
    )
    turns: ImitatedTurns = Field(ImitatedTurns.LAST, description="Assistant messages that are trained on.")


class TrainedTokens(SpecUnion):
    """Tokens of a sequence that are trained on."""

    mask: Column | None = Field(
        None,
        description="Column of a list with 1 or true for each trained token and 0 or false for each other "
        "one, such as completion_mask or assistant_masks.",
    )
    labels: Column | None = Field(
        None,
        description="Column of a list with the id of each trained token at the token's own position, and "
        "-100 for each other one.",
    )
    prompt_length: Column | None = Field(
        None, description="Column of the number of tokens of the prompt; all tokens after it are trained on."
    )


class DemonstrationTokens(SpecModel):
    """A sequence of token ids, parts of which are trained on."""

    sequence: Column = Field(
        "input_ids", description="Column of the ids of the whole sequence: prompt and response."
    )
    trained: TrainedTokens = Field(
        TrainedTokens(mask="completion_mask"), description="Tokens that are trained on."
    )


class DemonstrationFormat(SpecUnion):
    """Format of a prompt and its target response."""

    text: DemonstrationText | None = Field(None, description="Plain text.")
    chat: DemonstrationMessages | None = Field(None, description="Chat messages.")
    tokens: DemonstrationTokens | None = Field(None, description=_TOKENS)


class PreferenceText(SpecModel):
    """A prompt and two responses as plain text."""

    prompt: Column = Field("prompt", description="Column of the prompt.")
    chosen: Column = Field("chosen", description="Column of the better response.")
    rejected: Column = Field("rejected", description="Column of the worse response.")
    chosen_rating: Column | None = Field(
        None, description="Column of the better response's rating, for rpo; null: none."
    )
    rejected_rating: Column | None = Field(
        None, description="Column of the worse response's rating, for rpo; null: none."
    )


class PreferenceMessages(_ChatMessages):
    """Two conversations that differ in their last message."""

    chosen: Column = Field(
        "chosen",
        description="Column of a list of {role, content} messages that ends with the better response.",
    )
    rejected: Column = Field(
        "rejected",
        description="Column of a list of {role, content} messages that ends with the worse response.",
    )
    chosen_rating: Column | None = Field(
        None, description="Column of the better response's rating, for rpo; null: none."
    )
    rejected_rating: Column | None = Field(
        None, description="Column of the worse response's rating, for rpo; null: none."
    )


class PreferenceTokens(SpecModel):
    """A prompt and two responses as token ids."""

    prompt: Column = Field("prompt_ids", description="Column of the prompt's ids.")
    chosen: Column = Field(
        "chosen_ids", description="Column of the better response's ids, without the prompt's."
    )
    rejected: Column = Field(
        "rejected_ids", description="Column of the worse response's ids, without the prompt's."
    )
    chosen_rating: Column | None = Field(
        None, description="Column of the better response's rating, for rpo; null: none."
    )
    rejected_rating: Column | None = Field(
        None, description="Column of the worse response's rating, for rpo; null: none."
    )


class PreferenceFormat(SpecUnion):
    """Format of a prompt with a better and a worse response."""

    text: PreferenceText | None = Field(None, description="Plain text.")
    chat: PreferenceMessages | None = Field(None, description="Chat messages.")
    tokens: PreferenceTokens | None = Field(None, description=_TOKENS)


#: One column for each score that is trained; the columns name the scores.
RatingColumns: TypeAlias = Annotated[
    list[Column], Field(min_length=1, max_length=64, json_schema_extra=LIST_SET_SCHEMA), distinct_items
]


class StepLabels(SpecModel):
    """Labels of the steps of a response."""

    labels: Column = Field(
        "labels",
        description="Column of a list with one label for each step: true or 1 for a right one, false or 0 "
        "for a wrong one, a probability, or null: unknown.",
    )
    separator: str = Field(
        "\n\n",
        min_length=1,
        max_length=64,
        description="Text between two steps, as in rewards[].steps. It joins the texts of a response that "
        "is a list, as in TRL's stepwise supervision.",
    )


#: Message for `ratings` of a format with `steps`.
STEPS_OR_RATINGS = "the steps have the labels, and the response no rating: remove it"

#: Columns of ratings unless a format names others.
_RATING = ["rating"]

#: Description of `steps` of a format of ratings.
_STEP_LABELS = (
    "For rewardModel with stepClassification, in place of ratings: labels of the response's steps; "
    "null: none."
)


class RatingText(SpecModel):
    """Prompt and response as plain text, with ratings."""

    prompt: Column = Field("prompt", description="Column of the prompt.")
    response: Column = Field(
        "response", description="Column of the response; with steps it may be a list of texts, one for each."
    )
    ratings: RatingColumns = Field(
        _RATING,
        description="Rating columns, each of which is trained as a score of its own; null in a row: unknown.",
    )
    steps: StepLabels | None = Field(None, description=_STEP_LABELS)

    @model_validator(mode="after")
    def _steps_or_ratings(self) -> "RatingText":
        """Check that no ratings are named beside the labels of steps."""
        if self.steps is not None and self.ratings != _RATING:
            raise field_errors("RatingText", (("ratings",), self.ratings, STEPS_OR_RATINGS))
        return self


class RatingMessages(_ChatMessages):
    """A conversation whose last message is rated."""

    messages: Column = Field(
        "messages",
        description="Column of a list of {role, content} messages that ends with an assistant message.",
    )
    ratings: RatingColumns = Field(
        _RATING,
        description="Rating columns, each of which is trained as a score of its own; null in a row: unknown.",
    )
    steps: StepLabels | None = Field(None, description=_STEP_LABELS)

    @model_validator(mode="after")
    def _steps_or_ratings(self) -> "RatingMessages":
        """Check that no ratings are named beside the labels of steps."""
        if self.steps is not None and self.ratings != _RATING:
            raise field_errors("RatingMessages", (("ratings",), self.ratings, STEPS_OR_RATINGS))
        return self


class RatingTokens(SpecModel):
    """Prompt and response as token ids, with ratings."""

    prompt: Column = Field("prompt_ids", description="Column of the prompt's ids.")
    response: Column = Field(
        "completion_ids", description="Column of the response's ids, without the prompt's."
    )
    ratings: RatingColumns = Field(
        _RATING,
        description="Rating columns, each of which is trained as a score of its own; null in a row: unknown.",
    )


class RatingFormat(SpecUnion):
    """Format of a response with its ratings."""

    text: RatingText | None = Field(None, description="Plain text.")
    chat: RatingMessages | None = Field(None, description="Chat messages.")
    tokens: RatingTokens | None = Field(None, description=_TOKENS)


class UnpairedText(SpecModel):
    """Prompt and response as plain text, with a label for good or bad."""

    prompt: Column = Field("prompt", description="Column of the prompt.")
    response: Column = Field("response", description="Column of the response.")
    label: Column = Field(
        "label", description="Column of the label: true for a good response, false for a bad one."
    )


class UnpairedMessages(_ChatMessages):
    """A conversation, with a label for its last message."""

    messages: Column = Field(
        "messages",
        description="Column of a list of {role, content} messages that ends with an assistant message.",
    )
    label: Column = Field(
        "label", description="Column of the label: true for a good response, false for a bad one."
    )


class UnpairedTokens(SpecModel):
    """Prompt and response as token ids, with a label for good or bad."""

    prompt: Column = Field("prompt_ids", description="Column of the prompt's ids.")
    response: Column = Field(
        "completion_ids", description="Column of the response's ids, without the prompt's."
    )
    label: Column = Field(
        "label", description="Column of the label: true for a good response, false for a bad one."
    )


class UnpairedFormat(SpecUnion):
    """Format of a response labelled good or bad."""

    text: UnpairedText | None = Field(None, description="Plain text.")
    chat: UnpairedMessages | None = Field(None, description="Chat messages.")
    tokens: UnpairedTokens | None = Field(None, description=_TOKENS)


#: Reason to refuse a mixture where every row is read once.
READS_ALL_ROWS = "every row once, so weights have no effect: set source with paths of all files"

#: Reasons to refuse a field of a streamed data set.
STREAMS_ONE_SOURCE = (
    "the shares of a mixture need the number of rows of each source, which streaming does not know: set "
    "source, or remove streaming"
)
STREAMS_FILES = "streaming reads files: name those of a local copy in source.path, or remove streaming"
STREAMS_ALL_PROMPTS = "streaming holds only a part of the prompts: remove it, or remove streaming"


class Streaming(SpecModel):
    """Reading of rows while the job trains, in the order of the files through a shuffle buffer."""

    shuffle_buffer: int = Field(
        1000,
        ge=1,
        le=1_000_000,
        description="Rows held in memory, one of which is drawn at random, seeded by the job, and replaced "
        "by the next row of the source; as buffer_size of shuffle in datasets. Without effect where shuffle "
        "is false.",
    )


class _Dataset(SpecModel):
    """Fields of all data sets. Exactly one of source and mixture must be set."""

    source: DataSource | None = Field(
        None, description="Source of the rows. Exactly one of source and mixture must be set."
    )
    mixture: Mixture | None = Field(
        None,
        json_schema_extra=list_map_schema("name"),
        description="Several sources of rows of one format, drawn from by weight.",
    )
    max_tokens: int | None = Field(
        None,
        ge=1,
        le=MAX_INT32,
        description="Maximum prompt length in tokens; null: limited by the context length.",
    )
    overlong: OverlongPolicy = Field(
        OverlongPolicy.DROP, description="Treatment of rows with longer prompts; dropped rows are counted."
    )
    limit: int | None = Field(
        None,
        ge=1,
        le=MAX_INT32,
        description="Use only the first rows of the source, this many. Each entry of a mixture has its own "
        "limit.",
    )
    shuffle: bool = Field(
        True,
        description="Shuffle the rows in each epoch, seeded by the job. false: keep the order of the source; "
        "the sources of a mixture alternate evenly.",
    )
    streaming: Streaming | None = Field(
        None,
        description="Read, check and tokenise the rows of files while the job trains. null: all rows are "
        "prepared before the first step. Needs maxSteps; the files must not change while the job exists.",
    )
    values: dict[str, Any] = Field(
        default_factory=dict,
        max_length=64,
        description="Constant columns added to every row, such as quality: 4; they replace columns of "
        "the same name.",
    )
    template: Template | None = Field(
        None,
        description="Template of the prompt, with the row's columns in braces, such as '{prompt} "
        "quality:{quality}'; {prompt} is the text prompt or the last user message. A list of texts is "
        "written one a line, and with {choices:lettered} as A) and so on. null: the prompt unchanged.",
    )

    @model_validator(mode="after")
    def _one_source(self) -> "_Dataset":
        """Check that either a source or a mixture is set."""
        require_exactly_one(self, ["source", "mixture"], example="source: {path: train.jsonl}")
        return self

    @model_validator(mode="after")
    def _mixture_fields(self) -> "_Dataset":
        """Check that no field of the data set contradicts its mixture."""
        if self.mixture is None:
            return self
        problems: list[tuple[tuple[str | int, ...], Any, str]] = []
        if self.limit is not None:
            problems.append((("limit",), self.limit, "each entry of a mixture has its own limit: set that"))
        if SOURCE_COLUMN in self.values:
            problem = "this column holds the name of the row's entry in the mixture: choose another name"
            problems.append((("values", SOURCE_COLUMN), self.values[SOURCE_COLUMN], problem))
        row_format = getattr(self, "format", None)
        if row_format is not None and row_format.member != "chat":
            problems += [
                (
                    ("mixture", index, "systemPrompt"),
                    entry.system_prompt,
                    "only rows of chat messages have a system message: set format.chat, or remove it",
                )
                for index, entry in enumerate(self.mixture)
                if entry.system_prompt is not None
            ]
        if problems:
            raise field_errors(type(self).__name__, *problems)
        return self

    @model_validator(mode="after")
    def _streamed_source(self) -> "_Dataset":
        """Check that a streamed data set is one source of files."""
        if self.streaming is None:
            return self
        problems: list[tuple[tuple[str | int, ...], Any, str]] = []
        if self.mixture is not None:
            problems.append((("mixture",), self.mixture, STREAMS_ONE_SOURCE))
        if self.source is not None and self.source.hugging_face is not None:
            problems.append((("source", "huggingFace"), self.source.hugging_face, STREAMS_FILES))
        curriculum = getattr(self, "curriculum", None)
        if curriculum is not None:
            problems.append((("curriculum",), curriculum, STREAMS_ALL_PROMPTS))
        if problems:
            raise field_errors(type(self).__name__, *problems)
        return self

    @model_validator(mode="after")
    def _template_of_text(self) -> "_Dataset":
        """Check that a template has a text to fill in."""
        row_format = getattr(self, "format", None)
        if self.template is not None and row_format is not None and row_format.member == "tokens":
            problem = "token ids have no text for a template: remove it, or set format.text or format.chat"
            raise field_errors(type(self).__name__, (("template",), self.template, problem))
        return self


class PromptDataset(_Dataset):
    """Rows with prompts. All other columns are passed to the rewards."""

    # The entries are only read, so the list may be one of a subclass.
    mixture: PromptMixture | None = Field(  # type: ignore[assignment]
        None,
        json_schema_extra=list_map_schema("name"),
        description="Several sources of rows of one format, drawn from by weight.",
    )
    format: PromptFormat = Field(
        PromptFormat(text=PromptText()), description="Columns and format of the rows."
    )
    curriculum: PromptCurriculum | None = Field(
        None,
        description="Draw easy and hard prompts less often after the first epoch; for algorithms that sample "
        "in each step. null: each epoch draws every prompt.",
    )


class DemonstrationDataset(_Dataset):
    """Rows with prompts and target responses."""

    format: DemonstrationFormat = Field(
        DemonstrationFormat(text=DemonstrationText()), description="Columns and format of the rows."
    )


class PreferenceDataset(_Dataset):
    """Rows with a better and a worse response."""

    format: PreferenceFormat = Field(
        PreferenceFormat(text=PreferenceText()), description="Columns and format of the rows."
    )


class RatingDataset(_Dataset):
    """Rows with a response and its ratings."""

    format: RatingFormat = Field(
        RatingFormat(text=RatingText()), description="Columns and format of the rows."
    )


class UnpairedDataset(_Dataset):
    """Rows with a response labelled good or bad."""

    format: UnpairedFormat = Field(
        UnpairedFormat(text=UnpairedText()), description="Columns and format of the rows."
    )


class Data(SpecUnion):
    """Rows of one kind. The algorithm determines which member fits."""

    prompts: PromptDataset | None = Field(None, description="For algorithms that sample.")
    demonstrations: DemonstrationDataset | None = Field(
        None, description="For sft, distillation, spin and annotate."
    )
    preferences: PreferenceDataset | None = Field(
        None, description="For rewardModel with bradleyTerry, and for dpo, ipo, rpo, orpo and simpo."
    )
    ratings: RatingDataset | None = Field(
        None, description="For rewardModel with regression or stepClassification."
    )
    unpaired: UnpairedDataset | None = Field(None, description="For kto.")
