"""Sources of scores that are called for each sample: properties of rewards and validation scores."""

from enum import StrEnum

from kubealign.spec.base import field_errors
from kubealign.spec.sections.code_verifier import SandboxServer
from kubealign.spec.sections.reward_servers import (
    HttpReward,
    JudgeQuestions,
    JudgeReward,
    PolicyJudge,
    RewardServer,
)
from kubealign.spec.sections.verifiers import Verifier

#: Calls in flight of a score of another server, where the spec states none.
_SERVER_CONCURRENCY = 8


class RewardErrorPolicy(StrEnum):
    """Retry: the prompt is sampled again, and replaced after its last retry.

    Zero: the reward of the sample is 0. Skip: the reward does not apply to the sample. Fail: the job fails.
    """

    RETRY = "Retry"
    ZERO = "Zero"
    SKIP = "Skip"
    FAIL = "Fail"


class ScoreScope(StrEnum):
    """Sample: a call has any of the responses that wait, each of which is scored by itself.

    Group: a call has all responses to one prompt.
    """

    SAMPLE = "Sample"
    GROUP = "Group"


class ScoreCalls:
    """Properties of an entry whose source may be a function, a verifier, or another server.

    name: name of the entry.
    """

    name: str
    verifier: Verifier | None
    http: HttpReward | None
    judge: JudgeReward | None
    policy_judge: PolicyJudge | None
    concurrency: int | None
    timeout_seconds: float
    on_error: RewardErrorPolicy | None
    scope: ScoreScope

    @property
    def scores_groups(self) -> bool:
        """True where a call has all responses to one prompt."""
        return self.scope is ScoreScope.GROUP

    @property
    def sandbox_server(self) -> SandboxServer | None:
        """Service that runs the programs of a verifier of programs; None: there is none."""
        code = None if self.verifier is None else self.verifier.code
        return None if code is None else code.server

    @property
    def servers(self) -> dict[str, RewardServer]:
        """Field -> other server that gives the score: at most one."""
        servers: dict[str, RewardServer | None] = {
            "http": self.http,
            "judge": self.judge,
            "verifier.code.server": self.sandbox_server,
        }
        return {field: server for field, server in servers.items() if server is not None}

    @property
    def calls_a_server(self) -> bool:
        """True where another server gives the score."""
        return bool(self.servers)

    @property
    def questions(self) -> JudgeQuestions | None:
        """Questions to a judge, another server's or the policy; None: the score is no judge's."""
        return self.policy_judge if self.judge is None else self.judge

    @property
    def calls_in_flight(self) -> int:
        """Number of concurrent calls of each replica."""
        return self.concurrency or (_SERVER_CONCURRENCY if self.calls_a_server else 1)

    @property
    def error_policy(self) -> RewardErrorPolicy:
        """Effect of a sample without a score."""
        may_skip = self.calls_a_server or self.policy_judge is not None
        return self.on_error or (RewardErrorPolicy.SKIP if may_skip else RewardErrorPolicy.RETRY)

    def check_code_time(self, title: str) -> None:
        """Check that a verifier of programs ends before it is stopped. Raises ValidationError of `title`."""
        code = None if self.verifier is None else self.verifier.code
        if code is not None and code.seconds_per_response >= self.timeout_seconds:
            remedy = (
                f"must be below timeoutSeconds, {self.timeout_seconds:g}: lower it, or raise timeoutSeconds"
            )
            path = ("verifier", "code", "secondsPerResponse")
            raise field_errors(title, (path, code.seconds_per_response, remedy))

    def named_columns(self) -> dict[str, str]:
        """Return field -> column of the data set that the source needs."""
        if self.verifier is not None:
            return {f"verifier.{field}": column for field, column in self.verifier.named_columns().items()}
        if self.questions is not None:
            member = "judge" if self.policy_judge is None else "policyJudge"
            columns = self.questions.task.named_columns()
            return {f"{member}.task.{field}": column for field, column in columns.items()}
        return {}
