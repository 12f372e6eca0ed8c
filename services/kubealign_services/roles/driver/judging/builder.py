"""Builds the judges of a job whose policy gives rewards or validation scores."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from kubealign.spec.job import AlignmentJob
from kubealign.spec.sections.reward_servers import PolicyJudge
from kubealign.spec.sections.rewards import Reward
from kubealign.spec.sections.validation import ValidationScore
from kubealign_services.data.prepared import PreparedJob, PreparedRow
from kubealign_services.data.rows.example import Example
from kubealign_services.data.tokenization.example_tokenizer import ExampleTokenizer
from kubealign_services.roles.driver.errors import UnrecoverableError
from kubealign_services.roles.driver.judging.judgements import JudgementPlan, Judgements
from kubealign_services.roles.driver.judging.policy_model import PolicyModel
from kubealign_services.roles.driver.judging.scorer import ArrivalScorer
from kubealign_services.roles.driver.rollouts.collector import RolloutCollector
from kubealign_services.roles.driver.rollouts.work_items import to_sampling_proto
from kubealign_services.scoring.purposes import judgement_purpose
from kubealign_services.scoring.row_sources import restrict_to_sources
from kubealign_services.scoring.servers.judge.judge_reward import JudgedReward
from kubealign_services.scoring.servers.server_scorer import ServerScorer

_WORKER = "driver"


@asynccontextmanager
async def open_policy_judges(
    job: AlignmentJob, prepared: PreparedJob, collector: RolloutCollector
) -> AsyncIterator[None]:
    """Score rollouts by the policy's judgements while the context is open, for each entry that asks for it.

    Raises UnrecoverableError if a judgement has no room in the context.
    """
    judges: list[tuple[Judgements, JudgedReward, ArrivalScorer]] = []
    entries: list[Reward | ValidationScore] = [*job.spec.rewards, *job.spec.validation_scores]
    try:
        for entry in entries:
            if entry.policy_judge is not None:
                judges.append(_open_judge(job, prepared, collector, entry, entry.policy_judge))
        yield
    finally:
        for judgements, reward, scorer in judges:
            await scorer.close()
            await reward.close()
            judgements.close()


def _open_judge(
    job: AlignmentJob,
    prepared: PreparedJob,
    collector: RolloutCollector,
    entry: Reward | ValidationScore,
    spec: PolicyJudge,
) -> tuple[Judgements, JudgedReward, ArrivalScorer]:
    """Create the judge of a reward or a validation score, and register it with the collector."""
    rollout = job.spec.effective_rollout
    assert rollout is not None
    sampling = to_sampling_proto(
        rollout.sampling.model_copy(update={"temperature": spec.temperature, "max_tokens": spec.max_tokens})
    )
    sampling.min_tokens = min(sampling.min_tokens, spec.max_tokens)
    plan = JudgementPlan(job.spec.seed, judgement_purpose(entry.name), sampling, entry.timeout_seconds)
    judgements = Judgements(collector, plan)
    room = _max_prompt_tokens(entry.name, spec, prepared.report.context)
    model = PolicyModel(spec, judgements, _make_renderer(job, prepared), room)
    reward = JudgedReward(spec, model)
    scorer = ServerScorer(entry.name, _WORKER, reward, entry.error_policy)
    sources = entry.sources if isinstance(entry, Reward) else None
    own = restrict_to_sources(scorer, entry.name, _WORKER, sources)
    arrival = ArrivalScorer(own, model, collector.deliver)
    collector.add_scorer(entry.name, arrival.request)
    return judgements, reward, arrival


def _max_prompt_tokens(name: str, spec: PolicyJudge, context: int | None) -> int | None:
    """Return the most tokens of a question. Raises UnrecoverableError if there is no room for one."""
    if context is None:
        return None
    if context <= spec.max_tokens:
        raise UnrecoverableError(
            f"policyJudge.maxTokens of {name} ({spec.max_tokens}) leaves no room for a question: the context "
            f"is {context} tokens"
        )
    return context - spec.max_tokens


def _make_renderer(job: AlignmentJob, prepared: PreparedJob) -> Callable[[str], PreparedRow]:
    """Return the rendering of a question: as a single user message where the prompts are chats."""
    chat = job.spec.data.value.format.chat
    renderer = ExampleTokenizer(prepared.tokenizer, {} if chat is None else chat.chat_template_kwargs)

    def render(question: str) -> PreparedRow:
        prompt = question if chat is None else [{"role": "user", "content": question}]
        [rendered] = renderer.tokenize([Example(0, prompt)])
        return PreparedRow(0, rendered.prompt_tokens, rendered.prompt_text)

    return render
