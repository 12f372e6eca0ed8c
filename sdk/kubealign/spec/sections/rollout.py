"""Generation of responses by the rollout workers, and the refit of their weights."""

import re
from enum import StrEnum
from typing import Annotated

from pydantic import Field, model_validator

from kubealign.spec.base import (
    MAX_INT32,
    MAX_REPLICAS,
    PROCESSES_PER_POD,
    ProcessesPerPod,
    Replicas,
    ShortText,
    SpecModel,
    field_errors,
    require_equal_pods,
    require_pods_of_its_own,
)
from kubealign.spec.paths import DocumentPath
from kubealign.spec.pods.egress import EGRESS_DESCRIPTION, Egress
from kubealign.spec.pods.template import PodTemplate
from kubealign.spec.sections.engines import (
    LOOPBACK_URL_PATTERN,
    Engine,
    InferenceServer,
    TorchEngineSpec,
)
from kubealign.spec.sections.precision import Precision
from kubealign.spec.workflows.agents import ExternalAgents
from kubealign.spec.workflows.tool_calls import ToolCallsSpec
from kubealign.spec.workflows.workflow import WorkerFunction, WorkflowSpec


class SamplingSpec(SpecModel):
    """Sampling parameters."""

    max_tokens: int = Field(256, ge=1, le=MAX_INT32, description="Maximum response length in tokens.")
    min_tokens: int = Field(0, ge=0, le=MAX_INT32, description="Minimum response length in tokens.")
    temperature: float = Field(1.0, ge=0, description="Sampling temperature; 0: greedy decoding.")
    top_k: int = Field(
        0, ge=0, le=MAX_INT32, description="Sample among the k most likely tokens; 0: among all."
    )
    top_p: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Sample among the most likely tokens whose cumulative probability reaches this "
        "value (nucleus sampling).",
    )
    stop: list[ShortText] = Field(
        default_factory=list, max_length=16, description="Stop strings: a response ends after any of them."
    )
    stop_token_ids: list[Annotated[int, Field(ge=0, le=MAX_INT32)]] = Field(
        default_factory=list,
        max_length=64,
        description="Stop tokens: a response ends after any of them, in addition to the end-of-sequence "
        "token, the chat template's end of turn and those of generation_config.json.",
    )

    @property
    def is_truncated(self) -> bool:
        """True where tokens are sampled from another distribution than the full softmax."""
        return self.top_k > 0 or self.top_p < 1 or self.min_tokens > 0

    @model_validator(mode="after")
    def _lengths(self) -> "SamplingSpec":
        """Check that minTokens is at most maxTokens."""
        if self.min_tokens > self.max_tokens:
            raise field_errors(
                "Sampling",
                (("minTokens",), self.min_tokens, f"must be at most maxTokens ({self.max_tokens})"),
            )
        return self


class WeightTransport(StrEnum):
    """Auto: shared memory on the same machine, otherwise a gRPC stream.

    Collective: NCCL between GPUs, gloo between CPUs; workers that cannot join use the stream.
    """

    AUTO = "Auto"
    SHARED_MEMORY = "SharedMemory"
    STREAM = "Stream"
    COLLECTIVE = "Collective"


class WeightEncoding(StrEnum):
    """Dense: all weights.

    Delta: only changed weights, lossless, sent to streaming workers that hold the previous version; such a
    worker keeps a copy of the weights in memory.
    """

    DENSE = "Dense"
    DELTA = "Delta"


class InFlightPolicy(StrEnum):
    """Drain: they are finished with the old weights before the refit.

    Interrupt: they continue with the new weights after their KV cache is recomputed. Continue: they
    continue with the new weights and the KV cache of the old weights.
    """

    DRAIN = "Drain"
    INTERRUPT = "Interrupt"
    CONTINUE = "Continue"


class SampleScoring(StrEnum):
    """OnArrival: in requests for a few finished groups each, while other groups are still generated.

    The last bits of the results then depend on the order in which samples arrive. WholeBatch: in one request
    once the batch is complete; a job in which no model scores samples in a process of its own then repeats
    bit for bit.
    """

    ON_ARRIVAL = "OnArrival"
    WHOLE_BATCH = "WholeBatch"


#: External engines among the members of `rollout.engine`: they return only complete responses and cannot
#: report the weight version of a token.
EXTERNAL_ENGINES = ("tensorrt_llm", "vllm", "openai")


class RefitSpec(SpecModel):
    """Refit: the broadcast of new weights to the rollout workers after each step."""

    transport: WeightTransport = Field(WeightTransport.AUTO, description="Transport of the weights.")
    encoding: WeightEncoding = Field(WeightEncoding.DENSE, description="Encoding of streamed weights.")
    in_flight: InFlightPolicy | None = Field(
        None,
        description="Treatment of unfinished responses at a refit; each token records the version of "
        "its weights. null: Interrupt if maxStaleness is above 0 and the engine supports "
        "it, otherwise Drain.",
    )
    fan_out: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="Maximum number of workers to which one sender streams a version: the trainer to "
        "this many, and each of them, which keeps a copy, to this many more. null: the "
        "trainer streams to all workers.",
    )
    timeout_seconds: float = Field(
        120.0, gt=0, description="Time after which a worker that has not loaded the weights is quarantined."
    )


class MismatchAction(StrEnum):
    """Warn: a warning is logged, and the job fails above failMean. Fail: the job fails."""

    WARN = "Warn"
    FAIL = "Fail"


#: failMean as a multiple of mean where the spec names none.
FAIL_FACTOR = 10.0


class MismatchGateSpec(SpecModel):
    """Limits on the difference of engine and trainer log-probabilities of the same tokens."""

    mean: float = Field(
        0.05,
        gt=0,
        description="Mean absolute difference of a step, in nats, above which action is taken.",
    )
    action: MismatchAction = Field(MismatchAction.WARN, description="Action above mean.")
    fail_mean: float | None = Field(
        None,
        gt=0,
        description="Mean absolute difference of a step, in nats, above which the job fails with action "
        "Warn; null: ten times mean.",
    )

    @property
    def effective_fail_mean(self) -> float:
        """Mean difference above which the job fails."""
        if self.action is MismatchAction.FAIL:
            return self.mean
        return FAIL_FACTOR * self.mean if self.fail_mean is None else self.fail_mean

    @model_validator(mode="after")
    def _second_limit(self) -> "MismatchGateSpec":
        if self.fail_mean is not None and self.action is MismatchAction.FAIL:
            text = "action Fail fails above mean: remove it, or set action to Warn"
            raise field_errors("MismatchGate", (("failMean",), self.fail_mean, text))
        if self.fail_mean is not None and self.fail_mean < self.mean:
            text = f"must be at least mean ({self.mean:g})"
            raise field_errors("MismatchGate", (("failMean",), self.fail_mean, text))
        return self


class RolloutPlacement(StrEnum):
    """Own: elastic processes of their own.

    WithTrainer: one worker in each of the trainer's processes; training and generation alternate on the
    accelerator, and the idle one is offloaded to host memory.
    """

    OWN = "Own"
    WITH_TRAINER = "WithTrainer"


#: Message for environment workers without an environment.
NO_ENVIRONMENT = "the job has no workflow.environment to run: write 0"

#: Message for the egress of workers that connect to no other server.
NOTHING_CONNECTS = (
    "only the functions of a workflow and the engine openai connect to other servers: remove it, or set one "
    "of them"
)

#: Message for external agents of workers in the trainer's processes.
AGENTS_NEED_WORKERS = "external agents call rollout workers with an address of their own: set Own"

#: Message for a server that several workers would share.
ONE_SERVER_EACH = (
    "each worker loads weights into a server of its own: write {worker} in the URL, such as "
    "http://vllm-{worker}.vllm:8000, or set rollout.replicas to 1"
)

#: Message for sampling whose log-probabilities SGLang does not report.
FULL_SOFTMAX_ONLY = (
    "SGLang reports log-probabilities before topK, topP and minTokens are applied: set topK 0, topP 1 and "
    "minTokens 0, or server Vllm"
)


#: Most sequences of a response, which one message carries.
MAX_SEQUENCES_PER_SAMPLE = 256

#: Message for sequences that no workflow begins.
NOTHING_BRANCHES = "only workflow.function and workflow.agent begin further sequences: set one, or write 1"


class Rollout(SpecModel):
    """Rollout workers, which generate responses."""

    placement: RolloutPlacement = Field(
        RolloutPlacement.OWN, description="Processes in which the workers run."
    )
    replicas: Replicas = Field(
        1,
        description="Workers; with placement WithTrainer the same number as trainer.ranks.",
    )
    min_replicas: int = Field(
        1,
        ge=1,
        le=MAX_INT32,
        description="Minimum number of workers with the current weights (quorum): with fewer, the refit "
        "is retried once, then the driver makes a new attempt.",
    )
    engine: Engine = Field(Engine(torch=TorchEngineSpec()), description="Generation engine.")
    processes_per_pod: ProcessesPerPod | None = Field(
        None,
        description=f"Of a worker with engine.torch.tensorParallel above 1. {PROCESSES_PER_POD} Other "
        "engines use all devices of their pod in one process.",
    )
    sampling: SamplingSpec = Field(SamplingSpec(), description="Sampling parameters.")
    refit: RefitSpec = Field(RefitSpec(), description="Broadcast of new weights after each step.")
    mismatch_gate: MismatchGateSpec = Field(
        MismatchGateSpec(),
        description="Limits on the mismatch between the engine's and the trainer's log-probabilities.",
    )
    routing_replay: bool = Field(
        False,
        description="Mixtures of experts: the engine records the experts that it chooses for each token, and "
        "the trainer uses the same experts, with gate weights of its own router (R3, Ma et al. 2025). Only "
        "with engine.torch and trainer.backend.torch. A token's record takes one byte, two above 255 "
        "experts, for each of its experts in each layer.",
    )
    workflow: WorkflowSpec | None = Field(
        None, description="Multi-turn responses; null: each response is generated in a single turn."
    )
    max_sequences_per_sample: int = Field(
        1,
        ge=1,
        le=MAX_SEQUENCES_PER_SAMPLE,
        description="Maximum number of sequences of a response: its first and those that workflow.function "
        "begins with episode.branch, or workflow.agent with a conversation that continues none.",
    )
    scoring: SampleScoring | None = Field(
        None,
        description="When trainer and critic compute values, old log-probabilities, and the outputs of the "
        "reference and the reward models that are placed with them. null: OnArrival where a model scores the "
        "samples, WholeBatch where only functions do, and where batches are recorded.",
    )
    group_timeout_seconds: float = Field(
        600.0,
        gt=0,
        description="Time after which an incomplete group is requested again. In rounds, sampled validation "
        "and data generation it counts from the last group that finished.",
    )
    group_retries: int = Field(
        2,
        ge=0,
        le=MAX_INT32,
        description="Retries of a group before it is replaced by another prompt.",
    )
    egress: Egress = Field(
        default_factory=list,
        description="Only with workflow or engine.openai: destinations that the functions, the engine, and "
        f"all other code in the workers' pods, {EGRESS_DESCRIPTION}",
    )
    pod_template: PodTemplate | None = Field(None, description="Patch of the workers' pods.")
    environment_replicas: int = Field(
        0,
        ge=0,
        le=MAX_REPLICAS,
        description="Environment workers: processes of their own that run workflow.environment for all "
        "rollout workers. 0: those run it. May change while the job runs, but not from or to 0.",
    )

    def with_precision(self, precision: Precision) -> "Rollout":
        """Return these settings with this precision of the engine, where the spec names none."""
        if self.engine.value.precision is not None:
            return self
        engine = self.engine.value.model_copy(update={"precision": precision})
        return self.model_copy(update={"engine": self.engine.model_copy(update={self.engine.member: engine})})

    @property
    def functions(self) -> list[tuple[DocumentPath, WorkerFunction]]:
        """(path below the rollout, function) of every Python function that the workers call."""
        if self.workflow is None:
            return []
        if self.workflow.function is not None:
            return [(("workflow", "function"), self.workflow.function)]
        if self.workflow.tool_calls is not None:
            typed = enumerate(self.workflow.tool_calls.tools)
            return [(("workflow", "toolCalls", "tools", i, "function"), tool.function) for i, tool in typed]
        if self.workflow.environment is not None:
            environment = self.workflow.environment.function
            return [] if environment is None else [(("workflow", "environment", "function"), environment)]
        if self.workflow.agent is not None:
            agent = self.workflow.agent.function
            return [] if agent is None else [(("workflow", "agent", "function"), agent)]
        tools = self.workflow.tools.tools if self.workflow.tools is not None else []
        return [
            (("workflow", "tools", "tools", i, "function"), tool.function) for i, tool in enumerate(tools)
        ]

    @property
    def external_agents(self) -> ExternalAgents | None:
        """Agents outside the rollout workers, if any."""
        return None if self.workflow is None else self.workflow.external_agents

    @property
    def tool_calls(self) -> ToolCallsSpec | None:
        """Tool calls in the model's own format, if any."""
        return None if self.workflow is None else self.workflow.tool_calls

    @model_validator(mode="after")
    def _quorum(self) -> "Rollout":
        """Check minReplicas, that a workflow uses the egress and the sequences, and that the placement allows
        the template.
        """
        if self.min_replicas > self.replicas:
            raise field_errors(
                "Rollout",
                (("minReplicas",), self.min_replicas, f"must be at most replicas ({self.replicas})"),
            )
        runs_code = self.workflow is not None and self.external_agents is None
        if self.egress and not runs_code and self.engine.openai is None:
            raise field_errors("Rollout", (("egress",), self.egress, NOTHING_CONNECTS))
        if self.max_sequences_per_sample > 1 and not (self.workflow and self.workflow.can_branch):
            problem = (("maxSequencesPerSample",), self.max_sequences_per_sample, NOTHING_BRANCHES)
            raise field_errors("Rollout", problem)
        if self.environment_replicas and (self.workflow is None or self.workflow.environment is None):
            raise field_errors(
                "Rollout", (("environmentReplicas",), self.environment_replicas, NO_ENVIRONMENT)
            )
        if self.external_agents is not None and self.placement is not RolloutPlacement.OWN:
            raise field_errors("Rollout", (("placement",), self.placement, AGENTS_NEED_WORKERS))
        if self.placement is not RolloutPlacement.OWN:
            require_pods_of_its_own(self, f"workers {self.placement} have no pods of their own", "trainer")
        ranks = 1 if self.engine.torch is None else self.engine.torch.tensor_parallel
        require_equal_pods(self, self.processes_per_pod, ranks, "engine.torch.tensorParallel")
        return self

    @model_validator(mode="after")
    def _server(self) -> "Rollout":
        """Check that each worker has an inference server of its own, whose log-probabilities are known."""
        server = self.engine.openai
        if server is None:
            return self
        shared = server.names_one_server and not re.match(LOOPBACK_URL_PATTERN, server.url)
        if self.replicas > 1 and shared:
            raise field_errors("Rollout", (("engine", "openai", "url"), server.url, ONE_SERVER_EACH))
        if server.server is InferenceServer.SGLANG and self.sampling.is_truncated:
            path = ("engine", "openai", "server")
            raise field_errors("Rollout", (path, server.server, FULL_SOFTMAX_ONLY))
        return self


class ReferencePlacement(StrEnum):
    """Own: a process of its own.

    WithTrainer: in the trainer's process; the weights are offloaded to the CPU while idle. AdapterOff: the
    policy with its adapter disabled, without a second copy of the weights (needs trainer.lora).
    """

    OWN = "Own"
    WITH_TRAINER = "WithTrainer"
    ADAPTER_OFF = "AdapterOff"
