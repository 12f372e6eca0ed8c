"""How responses are generated, and how the engines get new weights."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field, model_validator

from kubealign.spec.base import MOST, ShortText, Spec, incoherent
from kubealign.spec.engines import Engine, TorchEngine
from kubealign.spec.paths import Place
from kubealign.spec.pod_template import PodTemplate
from kubealign.spec.workflow import ToolFunction, Workflow, WorkflowFunction


class Sampling(Spec):
    """How the next token is chosen, and when a response ends."""

    max_tokens: int = Field(256, ge=1, le=MOST, description="Longest response, in tokens.")
    min_tokens: int = Field(0, ge=0, le=MOST, description="The response cannot end before this many tokens.")
    temperature: float = Field(1.0, ge=0, description="0: always the likeliest token.")
    top_k: int = Field(0, ge=0, le=MOST, description="Sample among the k likeliest tokens; 0: among all.")
    top_p: float = Field(
        1.0, gt=0, le=1, description="Sample among the likeliest tokens that hold this probability together."
    )
    stop: list[ShortText] = Field(
        default_factory=list, max_length=16, description="A response ends after any of these."
    )
    stop_token_ids: list[Annotated[int, Field(ge=0, le=MOST)]] = Field(
        default_factory=list,
        max_length=64,
        description="A response ends after any of these, besides the end-of-sequence token.",
    )

    @model_validator(mode="after")
    def _lengths(self) -> "Sampling":
        if self.min_tokens > self.max_tokens:
            raise incoherent(
                "Sampling",
                (("minTokens",), self.min_tokens, f"must be at most maxTokens ({self.max_tokens})"),
            )
        return self


class Transport(StrEnum):
    """Auto: shared memory on the same machine, else a gRPC stream. Collective: NCCL between GPUs, gloo
    between CPUs; whoever cannot take part streams."""

    AUTO = "Auto"
    SHARED_MEMORY = "SharedMemory"
    STREAM = "Stream"
    COLLECTIVE = "Collective"


class Encoding(StrEnum):
    """Dense: all weights, as they are. Delta: to a worker that streams and holds the version before, only
    what changed, bit for bit; it keeps a copy of the weights in memory for that."""

    DENSE = "Dense"
    DELTA = "Delta"


class InFlight(StrEnum):
    """What becomes of responses in the making when new weights come. Drain: they are finished first, with the
    old ones. Interrupt: they go on with the new ones, what they have so far computed again. Continue: they go
    on with the new ones at once, over the keys and values of the old ones."""

    DRAIN = "Drain"
    INTERRUPT = "Interrupt"
    CONTINUE = "Continue"


#: Members of `rollout.engine` that are not our own engine: they give a response out whole, and cannot
#: tell which weights made which token.
ENGINES_OF_OTHERS = ("tensorrt_llm", "vllm")


class Refit(Spec):
    """The weight broadcast after each step."""

    transport: Transport = Field(Transport.AUTO, description="How the bytes travel.")
    encoding: Encoding = Field(Encoding.DENSE, description="What travels over a stream.")
    in_flight: InFlight | None = Field(
        None,
        description="What becomes of responses in the making; each token says which weights made it. null: "
        "Interrupt where maxStaleness is above 0 and the engine can, else Drain.",
    )
    fan_out: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="Most workers that one sender streams a version to: the trainer to so many, and each of "
        "those, which keeps a copy for it, to so many more. null: the trainer to all.",
    )
    timeout_seconds: float = Field(
        120.0, gt=0, description="A worker that has not taken the weights by then is quarantined."
    )


class MismatchGate(Spec):
    """The bound on the gap between the engine's and the trainer's log-probabilities of the same tokens."""

    mean: float = Field(
        0.05,
        gt=0,
        description="Largest mean absolute difference of a step, in nats. Above it the job fails.",
    )


class RolloutPlacement(StrEnum):
    """Own: processes of their own, elastic. WithTrainer: one worker in each of the trainer's processes;
    training and generation take turns with the accelerator, and the idle one rests in the host's memory."""

    OWN = "Own"
    WITH_TRAINER = "WithTrainer"


class Rollout(Spec):
    """The workers that generate."""

    placement: RolloutPlacement = Field(RolloutPlacement.OWN, description="Where the workers run.")
    replicas: int = Field(
        1, ge=1, le=1024, description="Workers; with placement WithTrainer as many as trainer.ranks."
    )
    min_replicas: int = Field(
        1,
        ge=1,
        le=MOST,
        description="Fewer workers with current weights than this: one full retry, then the job fails.",
    )
    engine: Engine = Field(Engine(torch=TorchEngine()), description="What generates.")
    sampling: Sampling = Field(
        Sampling(), description="How the next token is chosen, and when a response ends."
    )
    refit: Refit = Field(Refit(), description="The weight broadcast after each step.")
    mismatch_gate: MismatchGate = Field(
        MismatchGate(), description="When the engine's numbers are too far off."
    )
    workflow: Workflow | None = Field(
        None, description="Responses of several turns; null: each is generated at once."
    )
    group_timeout_seconds: float = Field(
        600.0, gt=0, description="A group that is not whole by then is asked for again."
    )
    group_retries: int = Field(
        2,
        ge=0,
        le=MOST,
        description="How often a group is asked for again before another prompt takes its place.",
    )
    pod_template: PodTemplate | None = Field(None, description="Patch of the workers' pods.")

    @property
    def functions(self) -> list[tuple[Place, ToolFunction | WorkflowFunction]]:
        """(place below the rollout, function) of every Python function that the workers call."""
        if self.workflow is None:
            return []
        if self.workflow.function is not None:
            return [(("workflow", "function"), self.workflow.function)]
        tools = self.workflow.tools.tools if self.workflow.tools is not None else []
        return [
            (("workflow", "tools", "tools", i, "function"), tool.function) for i, tool in enumerate(tools)
        ]

    @model_validator(mode="after")
    def _quorum(self) -> "Rollout":
        if self.min_replicas > self.replicas:
            raise incoherent(
                "Rollout",
                (("minReplicas",), self.min_replicas, f"must be at most replicas ({self.replicas})"),
            )
        if self.pod_template is not None and self.placement is not RolloutPlacement.OWN:
            remedy = f"workers {self.placement} have no pods of their own: set trainer.podTemplate"
            raise incoherent("Rollout", (("podTemplate",), self.pod_template, remedy))
        return self


class ReferencePlacement(StrEnum):
    """Own: a process of its own. WithTrainer: in the trainer's process, idle weights on the CPU. AdapterOff:
    the policy without its adapter, so that no second copy of the weights is held (needs trainer.lora)."""

    OWN = "Own"
    WITH_TRAINER = "WithTrainer"
    ADAPTER_OFF = "AdapterOff"
