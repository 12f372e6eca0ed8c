"""The job's policy as the chat model of a judge."""

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from kubealign.spec.sections.reward_servers import PolicyJudge
from kubealign.v1 import rollout_pb2
from kubealign_services.batch.codec import decode
from kubealign_services.data.prepared import PreparedRow
from kubealign_services.roles.driver.judging.judgements import Judgements
from kubealign_services.scoring.functions.errors import RewardError, RewardRaised
from kubealign_services.scoring.servers.endpoint import UnusableAnswer

T = TypeVar("T")

log = logging.getLogger(__name__)


class PolicyModel:
    """A ChatModel whose answers the rollout workers generate.

    `version`: least version of the weights that answer. Requests contain it, so that the answers of one
    version are not those of another one.

    Args:
        render: Returns a question as a prompt of the policy.
        max_prompt_tokens: Most tokens of a question, so that the answer fits the context; None: unlimited.
    """

    def __init__(
        self,
        spec: PolicyJudge,
        judgements: Judgements,
        render: Callable[[str], PreparedRow],
        max_prompt_tokens: int | None,
    ) -> None:
        self._spec = spec
        self._judgements = judgements
        self._render = render
        self._max_prompt_tokens = max_prompt_tokens
        self.version = 0

    def request(self, question: str) -> dict[str, Any]:
        return {"question": question, "version": self.version}

    async def answer(self, request: dict[str, Any], read: Callable[[Any], T]) -> T:
        """Return the verdict on a question. An answer that cannot be used is sampled again with other seeds.

        Raises:
            RewardHung: No answer came in time.
            RewardRaised: The question is too long, or no answer could be used.
        """
        row = self._render(request["question"])
        limit, length = self._max_prompt_tokens, len(row.prompt_tokens)
        if limit is not None and length > limit:
            raise RewardRaised(
                f"the question has {length} tokens, and the context has room for {limit} before the "
                f"judgement's maxTokens ({self._spec.max_tokens})"
            )
        for attempt in range(self._spec.retries + 1):
            try:
                return read(to_chat_answer(await self._judgements.request(row, request["version"], attempt)))
            except UnusableAnswer as error:
                failure: RewardError = RewardRaised(f"the policy's judgement: {error}")
            except RewardError as error:
                failure = error
            log.info("a judgement is requested again", extra={"attempt": attempt, "cause": str(failure)})
        raise failure


def to_chat_answer(rollout: rollout_pb2.Rollout) -> dict[str, Any]:
    """Return a rollout in the form of an answer of /chat/completions, with the version of the weights."""
    sequence = decode(rollout.sequence)
    generated = sequence.token("loss_mask").bool()
    return {
        "choices": [{"message": {"content": rollout.response}}],
        "usage": {"total_tokens": len(generated)},
        "weight_version": int(sequence.token("weight_version")[generated].min()),
    }
