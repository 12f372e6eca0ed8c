"""Creates the sample producer of a job's rollout."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from types import MappingProxyType
from typing import Any

import transformers
from transformers import PreTrainedTokenizerBase

from kubealign.spec.workflows.agents import AgentSpec
from kubealign.spec.workflows.environments import EnvironmentSpec, ObservationFormat
from kubealign.spec.workflows.workflow import WorkflowSpec as WorkflowSpec
from kubealign_services.agents.pool import AgentPool
from kubealign_services.data.errors import DataError
from kubealign_services.data.models.checkpoint_layout import TRANSFORMERS_MAJOR
from kubealign_services.data.tokenization.message_turns import MessageTurns
from kubealign_services.environments.contract import EnvironmentFailed
from kubealign_services.environments.pool import EnvironmentPool
from kubealign_services.generation.contract import Generator
from kubealign_services.roles.rollout.agents.conversations import Conversations
from kubealign_services.roles.rollout.agents.external.endpoint import EndpointAddress, read_agents_token
from kubealign_services.roles.rollout.agents.external.pool import ExternalAgentPool
from kubealign_services.roles.rollout.agents.external.routes import SessionRoutes
from kubealign_services.roles.rollout.agents.server import AgentServer
from kubealign_services.roles.rollout.agents.workflow import Agents, AgentWorkflow
from kubealign_services.roles.rollout.sample_producers import MultiTurn, SampleProducer, SingleTurn
from kubealign_services.roles.rollout.workflow.branching import Branching
from kubealign_services.roles.rollout.workflow.contract import EpisodeWorkflow, WorkflowFailed
from kubealign_services.roles.rollout.workflow.custom import CustomWorkflow
from kubealign_services.roles.rollout.workflow.environment import Environments, EnvironmentWorkflow
from kubealign_services.roles.rollout.workflow.tool_calls import ToolCallWorkflow
from kubealign_services.roles.rollout.workflow.tool_use import ToolWorkflow
from kubealign_services.runtime.process.failures import PermanentFailure
from kubealign_services.runtime.rpc.server import PortInUse
from kubealign_services.scoring.functions.function_process import ToolProcess
from kubealign_services.tools.job_tools import JobTools
from kubealign_services.tools.mcp_server import McpUnavailable
from kubealign_services.tools.parsers.registry import make_parser
from kubealign_services.tools.toolbox import open_toolbox

#: Opens the environments of a spec.
OpenEnvironments = Callable[[EnvironmentSpec], AbstractAsyncContextManager[Environments]]

_ENVIRONMENT = "spec.rollout.workflow.environment"


def check_workflow_libraries(spec: WorkflowSpec | None) -> None:
    """Raise PermanentFailure for a workflow where transformers 4 is installed.

    Version 4 renders special tokens within a message as special tokens, so that the result of a tool could
    end a turn.
    """
    if spec is not None and TRANSFORMERS_MAJOR < 5:
        raise PermanentFailure(
            f"spec.rollout.workflow needs transformers 5; the environment of the engine has "
            f"{transformers.__version__}: set rollout.engine.torch or rollout.engine.vllm"
        )


@asynccontextmanager
async def open_sample_producer(
    spec: WorkflowSpec | None,
    generator: Generator,
    worker: str,
    tokenizer: PreTrainedTokenizerBase,
    episode_rewards: Mapping[str, str],
    tools: JobTools | None = None,
    template_variables: Mapping[str, Any] = MappingProxyType({}),
    branching: Branching | None = None,
    open_environments: OpenEnvironments = EnvironmentPool,
    agents_address: EndpointAddress | None = None,
) -> AsyncIterator[SampleProducer]:
    """Open the sample producer; a workflow's tools and environments run until the block ends.

    Args:
        episode_rewards: Reward of the job -> name under which episodes give it.
        tools: Tools of a workflow that calls them in the model's own format.
        template_variables: Variables of the chat template, for the messages of an environment.
        branching: Limits of the sequences of an episode; None: it has one.
        open_environments: Opens the environments of a workflow, by default in processes of this one.
        agents_address: Address for external agents; None: a free port of loopback.

    Raises:
        RewardError: A tool cannot be started.
        WorkflowFailed: The workflow cannot be loaded.
    """
    if spec is None:
        yield SingleTurn(generator, worker)
        return
    async with AsyncExitStack() as stack:
        if spec.environment is not None:
            turns = _message_turns(spec.environment, tokenizer, template_variables)
            environments = await _open_environments(spec.environment, stack, open_environments)
            workflow: EpisodeWorkflow = EnvironmentWorkflow(spec.environment, environments, turns)
        elif spec.agent is not None:
            branching = branching or Branching(tokenizer, variables=template_variables)
            agents, server = await _open_agents(spec.agent, stack, agents_address or EndpointAddress())
            conversations = Conversations(tokenizer, template_variables, spec.agent.parser)
            workflow = AgentWorkflow(spec.agent, server, agents, conversations, branching.max_sequences)
            # The first sequence is the row's prompt, which an agent need not use.
            branching = branching.with_max_sequences(branching.max_sequences + 1)
        else:
            workflow = await _create_workflow(spec, stack, tokenizer, tools)
        yield MultiTurn(generator, worker, workflow, tokenizer, episode_rewards, branching)


async def _create_workflow(
    spec: WorkflowSpec, stack: AsyncExitStack, tokenizer: PreTrainedTokenizerBase, tools: JobTools | None
) -> EpisodeWorkflow:
    if spec.function is not None:
        workflow = CustomWorkflow.from_spec(spec.function)
        stack.callback(workflow.close)
        return workflow
    if spec.tool_calls is not None:
        assert tools is not None
        try:
            turns = tools.make_turns(tokenizer)
            parser = make_parser(spec.tool_calls, turns)
            toolbox = await stack.enter_async_context(open_toolbox(spec.tool_calls, tools.catalog))
        except (DataError, McpUnavailable) as error:
            raise WorkflowFailed(str(error)) from error
        return ToolCallWorkflow(spec.tool_calls, toolbox, parser, turns)
    assert spec.tools is not None
    processes = {tool.name: await stack.enter_async_context(ToolProcess(tool)) for tool in spec.tools.tools}
    return ToolWorkflow(spec.tools, processes)


async def _open_agents(
    spec: AgentSpec, stack: AsyncExitStack, address: EndpointAddress
) -> tuple[Agents, AgentServer]:
    """Start the agents' processes, if they are of this worker, and the server that agents call.

    Raises WorkflowFailed.
    """
    try:
        if spec.external is not None:
            external = ExternalAgentPool(spec)
            routes = SessionRoutes(external, read_agents_token(spec.external))
            server = await stack.enter_async_context(AgentServer(routes, address.host, address.port))
            stack.enter_context(address.announce(server.port))
            return external, server
        agents = await stack.enter_async_context(AgentPool(spec))
        return agents, await stack.enter_async_context(AgentServer())
    except EnvironmentFailed as error:
        raise WorkflowFailed(f"spec.rollout.workflow.agent: {error}") from error
    except PortInUse as error:
        raise WorkflowFailed(f"spec.rollout.workflow.agent.external.port: {error}") from error


def _message_turns(
    spec: EnvironmentSpec, tokenizer: PreTrainedTokenizerBase, variables: Mapping[str, Any]
) -> MessageTurns | None:
    """Return the renderer of observations as chat messages; None: they are text. Raises WorkflowFailed."""
    try:
        is_chat = spec.observation is ObservationFormat.CHAT
        return MessageTurns(tokenizer, variables) if is_chat else None
    except DataError as error:
        raise WorkflowFailed(f"{_ENVIRONMENT}: {error}") from error


async def _open_environments(
    spec: EnvironmentSpec, stack: AsyncExitStack, open_environments: OpenEnvironments
) -> Environments:
    """Open the environments until the stack is closed. Raises WorkflowFailed."""
    try:
        return await stack.enter_async_context(open_environments(spec))
    except EnvironmentFailed as error:
        raise WorkflowFailed(f"{_ENVIRONMENT}: {error}") from error
