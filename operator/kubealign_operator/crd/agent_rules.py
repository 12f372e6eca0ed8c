"""CEL rules of agents, as `kubealign.spec.workflows.agents` and `kubealign.spec.sections.rollout`."""

from kubealign.spec.sections.rollout import AGENTS_NEED_WORKERS
from kubealign.spec.workflows.agents import (
    DEFAULT_CONCURRENCY,
    DEFAULT_PROCESSES,
    EXTERNAL_HAVE_NO_PROCESSES,
    RESERVED_PORT,
    RESERVED_PORTS,
)
from kubealign_operator.crd.cel import CelRule


def agent_process_rules() -> list[CelRule]:
    """Return the rules of `rollout.workflow.agent` that external agents have no processes."""
    return [
        CelRule(
            f"!has(self.external) || self.{name} == {default}",
            EXTERNAL_HAVE_NO_PROCESSES,
            field_path=f".{name}",
        )
        for name, default in (("processes", DEFAULT_PROCESSES), ("concurrency", DEFAULT_CONCURRENCY))
    ]


def external_agents_rule() -> CelRule:
    """Return the rule of the port of `rollout.workflow.agent.external`."""
    reserved = " || ".join(f"(self.port >= {first} && self.port <= {last})" for first, last in RESERVED_PORTS)
    return CelRule(f"!has(self.port) || !({reserved})", RESERVED_PORT, field_path=".port")


def agent_placement_rule() -> CelRule:
    """Return the rule of `rollout` that external agents need workers of their own."""
    return CelRule(
        "self.placement == 'Own' || !has(self.workflow) || !has(self.workflow.agent) || "
        "!has(self.workflow.agent.external)",
        AGENTS_NEED_WORKERS,
        field_path=".placement",
    )
