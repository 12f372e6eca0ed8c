"""Environments that answer the turns of a response and reward them."""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field, model_validator

from kubealign.spec.base import (
    HTTP_ADDRESS_PATTERN,
    LIST_SET_SCHEMA,
    MAX_INT32,
    MODULE_FUNCTION_PATTERN,
    PYTHON_NAME_PATTERN,
    EntryName,
    ShortText,
    SpecModel,
    SpecUnion,
    distinct_items,
    field_errors,
    require_exactly_one,
)
from kubealign.spec.sections.rewards import ConfigMapFunction, FileFunction


class EnvironmentFile(FileFunction):
    """A class, or a function that returns an environment, in a Python file."""

    name: str = Field(
        "Environment",
        pattern=PYTHON_NAME_PATTERN,
        max_length=253,
        description="Name of the class or function.",
    )


class EnvironmentConfigMap(ConfigMapFunction):
    """A class, or a function that returns an environment, in a Python file that is stored in a ConfigMap of
    the job's namespace.
    """

    function: str = Field(
        "Environment",
        pattern=PYTHON_NAME_PATTERN,
        max_length=253,
        description="Name of the class or function.",
    )


class EnvironmentFunction(SpecUnion):
    """A Python class, or a function that returns an environment; it is called for each episode.

    The object has the methods `reset(seed, columns)`, `step(action)` and, optionally, `close()`
    (`kubealign_services.environments.Environment`), plain or async.
    """

    module: Annotated[str, Field(pattern=MODULE_FUNCTION_PATTERN, max_length=512)] | None = Field(
        None, description="package.module:name, importable in the rollout workers."
    )
    file: EnvironmentFile | None = Field(None, description="A class or function in a Python file.")
    config_map: EnvironmentConfigMap | None = Field(
        None, description="A class or function in a ConfigMap; only in a cluster."
    )


class ReasoningGymEnvironment(SpecModel):
    """A task of the package reasoning-gym, with one turn: the answer, which its verifier scores from 0 to
    1.
    """

    dataset: ShortText = Field(description="Name of the task, such as basic_arithmetic.")
    answer_tag: Annotated[str, Field(pattern=PYTHON_NAME_PATTERN, max_length=64)] | None = Field(
        None,
        description="Name of the tag that encloses the answer, such as answer: the text in its last "
        "occurrence is scored. null: the whole turn.",
    )


class GymnasiumEnvironment(SpecModel):
    """An environment of the package gymnasium with discrete actions."""

    id: ShortText = Field(description="Name in gymnasium's registry, such as FrozenLake-v1.")
    actions: Annotated[list[ShortText], distinct_items] = Field(
        default_factory=list,
        max_length=1024,
        json_schema_extra=LIST_SET_SCHEMA,
        description="Name of each action, in the order of gymnasium's numbers. A turn chooses the name that "
        "it mentions last, as a whole word, in upper or lower case. Empty: the names are the numbers.",
    )
    invalid_action_reward: float = Field(
        0.0,
        description="Reward of a turn that names no action. The environment does not move, and the policy is "
        "told the names.",
    )


class TextArenaEnvironment(SpecModel):
    """A game for one player of the package textarena."""

    id: ShortText = Field(description="Name in textarena's registry, such as GuessTheNumber-v0.")


class OpenEnvEnvironment(SpecModel):
    """An environment behind an OpenEnv server, which is called over a WebSocket."""

    url: str = Field(pattern=HTTP_ADDRESS_PATTERN, max_length=2048, description="Address of the server.")
    action_field: ShortText = Field(
        "message", description="Field of the server's action that takes the text of a turn."
    )
    observation_field: ShortText = Field(
        "message", description="Field of the server's observation with the text for the policy."
    )


class ObservationFormat(StrEnum):
    """Text: inserted as it is.

    Chat: as a user's message of the chat template.
    """

    TEXT = "Text"
    CHAT = "Chat"


class FirstObservation(StrEnum):
    """InPrompt: the row's prompt has the first observation in it.

    Insert: the first observation follows the prompt.
    """

    IN_PROMPT = "InPrompt"
    INSERT = "Insert"


#: Fields of `EnvironmentSpec`, exactly one of which is set.
ENVIRONMENT_KINDS = ("function", "reasoning_gym", "gymnasium", "text_arena", "open_env")

#: Message for a first observation that would follow the opening of the assistant's answer.
NO_CHAT_BEFORE_TURN = (
    "a message cannot follow the opening of the assistant's answer, which ends a chat prompt: write the "
    "observation into the prompt (python -m kubealign_services.environments.rows) and set InPrompt"
)


class EnvironmentSpec(SpecModel):
    """Environment of each response: exactly one of function, reasoningGym, gymnasium, textArena and openEnv.

    The policy generates a turn, the environment answers with an observation, which is excluded from the
    loss, and a reward, and the policy continues until the environment is done. maxTokens limits turns and
    observations together.
    """

    function: EnvironmentFunction | None = Field(None, description="A Python class or function.")
    reasoning_gym: ReasoningGymEnvironment | None = Field(None, description="A task of reasoning-gym.")
    gymnasium: GymnasiumEnvironment | None = Field(None, description="An environment of gymnasium.")
    text_arena: TextArenaEnvironment | None = Field(None, description="A game of textarena.")
    open_env: OpenEnvEnvironment | None = Field(None, description="An OpenEnv server.")
    parameters: dict[str, Any] = Field(
        default_factory=dict,
        max_length=256,
        description="Keyword arguments of the class or function, of the task, of gymnasium.make or "
        "textarena.make; with openEnv those of each reset.",
    )
    reward: EntryName = Field(
        "reward", description="Name under which the rewards of the turns are given to rewards[].episode."
    )
    max_turns: int = Field(
        16, ge=1, le=MAX_INT32, description="Turns after which a response ends that the environment does not."
    )
    max_turn_tokens: int | None = Field(
        None, ge=1, le=MAX_INT32, description="Maximum tokens of a turn; null: those left of maxTokens."
    )
    stop: Annotated[list[ShortText], distinct_items] = Field(
        default_factory=list,
        max_length=64,
        json_schema_extra=LIST_SET_SCHEMA,
        description="Strings that end a turn, besides the end-of-sequence token. They stay in the response "
        "and are not part of the action.",
    )
    observation: ObservationFormat = Field(
        ObservationFormat.TEXT, description="Form in which observations follow the turns."
    )
    observation_template: str = Field(
        "{observation}",
        min_length=1,
        max_length=16384,
        description="Text of an observation, with the placeholder {observation}. Not for observations that "
        "are chat messages.",
    )
    first_observation: FirstObservation = Field(
        FirstObservation.IN_PROMPT,
        description="Location of the observation that begins the episode. InPrompt is checked.",
    )
    processes: int = Field(
        1,
        ge=1,
        le=256,
        description="Processes of each rollout worker, or of each environment worker, that run the "
        "environments. One that is lost fails its own episodes, and is replaced.",
    )
    concurrency: int = Field(
        32, ge=1, le=4096, description="Episodes that run at once in each process; others wait."
    )
    reset_timeout_seconds: float = Field(
        60.0, gt=0, description="Time limit of the creation and the reset of an environment together."
    )
    step_timeout_seconds: float = Field(30.0, gt=0, description="Time limit of a step.")

    @property
    def kind(self) -> str:
        """Name of the kind that is set (snake_case)."""
        return next(name for name in ENVIRONMENT_KINDS if getattr(self, name) is not None)

    @model_validator(mode="after")
    def _coherent(self) -> "EnvironmentSpec":
        """Check that one kind is set, the template, and that chat prompts have the first observation."""
        require_exactly_one(self, list(ENVIRONMENT_KINDS))
        if "{observation}" not in self.observation_template:
            problem = "must have {observation} in it, which is replaced by the observation"
            raise field_errors("Environment", (("observationTemplate",), self.observation_template, problem))
        is_chat = self.observation is ObservationFormat.CHAT
        if is_chat and self.first_observation is FirstObservation.INSERT:
            raise field_errors(
                "Environment", (("firstObservation",), self.first_observation, NO_CHAT_BEFORE_TURN)
            )
        return self
