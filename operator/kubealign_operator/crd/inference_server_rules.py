"""CEL rules of workers that generate with inference servers of their own (`rollout.engine.openai`)."""

from collections.abc import Iterator

from kubealign.spec.sections.engines import LOOPBACK_URL_PATTERN, WORKER_PLACEHOLDER, InferenceServer
from kubealign.spec.sections.rollout import (
    FULL_SOFTMAX_ONLY,
    NO_ENVIRONMENT,
    NOTHING_CONNECTS,
    ONE_SERVER_EACH,
)
from kubealign_operator.crd.cel import CelRule, cel_string

_OPENAI = "self.engine.openai"
_HAS_EXTERNAL_AGENTS = "has(self.workflow.agent) && has(self.workflow.agent.external)"


def inference_server_rules() -> Iterator[CelRule]:
    """Yield the rules of `rollout`."""
    yield CelRule(
        f"self.egress.size() == 0 || (has(self.workflow) && !({_HAS_EXTERNAL_AGENTS})) || has({_OPENAI})",
        NOTHING_CONNECTS,
        field_path=".egress",
    )
    yield CelRule(
        "self.environmentReplicas == 0 || (has(self.workflow) && has(self.workflow.environment))",
        NO_ENVIRONMENT,
        field_path=".environmentReplicas",
    )
    yield CelRule(
        f"!has({_OPENAI}) || self.replicas == 1 || {_OPENAI}.url.contains({cel_string(WORKER_PLACEHOLDER)}) "
        f"|| {_OPENAI}.url.matches({cel_string(LOOPBACK_URL_PATTERN)})",
        ONE_SERVER_EACH,
        field_path=".engine.openai.url",
    )
    full = "self.sampling.topK == 0 && self.sampling.topP == 1.0 && self.sampling.minTokens == 0"
    yield CelRule(
        f"!has({_OPENAI}) || {_OPENAI}.server != {cel_string(InferenceServer.SGLANG)} || ({full})",
        FULL_SOFTMAX_ONLY,
        field_path=".engine.openai.server",
    )
