"""Creates the sample producer of a job's rollout."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from transformers import PreTrainedTokenizerBase

from kubealign.spec.sections.workflow import WorkflowSpec as WorkflowSpec
from kubealign_services.generation.contract import Generator
from kubealign_services.roles.rollout.sample_producers import MultiTurn, SampleProducer, SingleTurn
from kubealign_services.roles.rollout.workflow.contract import EpisodeWorkflow
from kubealign_services.roles.rollout.workflow.custom import CustomWorkflow
from kubealign_services.roles.rollout.workflow.tool_use import ToolWorkflow
from kubealign_services.scoring.functions.function_process import ToolProcess


@asynccontextmanager
async def open_sample_producer(
    spec: WorkflowSpec | None,
    generator: Generator,
    worker: str,
    tokenizer: PreTrainedTokenizerBase,
    episode_rewards: Mapping[str, str],
) -> AsyncIterator[SampleProducer]:
    """Open the sample producer; a workflow's tools run until the block ends.

    Args:
        episode_rewards: Reward of the job -> name under which episodes give it.

    Raises:
        RewardError: A tool cannot be started.
        WorkflowFailed: The workflow cannot be loaded.
    """
    if spec is None:
        yield SingleTurn(generator, worker)
        return
    async with AsyncExitStack() as stack:
        workflow = await _create_workflow(spec, stack)
        yield MultiTurn(generator, worker, workflow, tokenizer, episode_rewards)


async def _create_workflow(spec: WorkflowSpec, stack: AsyncExitStack) -> EpisodeWorkflow:
    if spec.function is not None:
        workflow = CustomWorkflow.from_spec(spec.function)
        stack.callback(workflow.close)
        return workflow
    assert spec.tools is not None
    tools = {tool.name: await stack.enter_async_context(ToolProcess(tool)) for tool in spec.tools.tools}
    return ToolWorkflow(spec.tools, tools)
