"""Duration and memory of a step of RLOO, GRPO and PPO against TRL."""

from tests.bench.line import Aim, Bench, Line, Outcome
from tests.bench.lines.steps import detail, in_turn, kubealign, peer
from tests.bench.process import ROOT

_PPO_PYTHON = ROOT / ".venv" / "trl-ppo" / "bin" / "python"


def tailed(method: str) -> Line:
    """Return the line of a method with long-tailed responses."""

    def run(bench: Bench) -> Outcome:
        workload = bench.tailed.doing(method=method)
        warmup, steps = bench.pick((1, 1), (1, 3), (1, 3))
        sides, weights = in_turn(
            bench,
            workload,
            [
                ("kubealign", kubealign(workload), warmup, steps),
                ("TRL best", peer("trl_online", ["best"], "TRL"), 1, bench.pick(1, 1, 2)),
                ("TRL default", peer("trl_online", ["default"], "TRL"), 1, 1),
            ],
        )
        ours, best, default = sides
        figures = {
            "kubealign": ours.step_seconds,
            "default": default.step_seconds,
            "best": best.step_seconds,
            "times_default": default.step_seconds / ours.step_seconds,
            "times_best": best.step_seconds / ours.step_seconds,
            "memory": ours.peak_bytes_of_all / default.peak_bytes_of_all,
            "memory_best": ours.peak_bytes_of_all / best.peak_bytes_of_all,
        }
        return Outcome(figures, detail(sides, workload, weights))

    memory = (Aim("memory", "peak memory beside TRL", 0.3, at_least=False),) if method == "rloo" else ()
    return Line(
        f"{method}-tail",
        f"{method.upper()} step, long-tailed answers",
        "TRL as its users run it; with its best settings",
        (
            Aim("times_default", "times TRL as its users run it", 8.0),
            Aim("times_best", "times TRL with its best settings", 3.0),
            *memory,
        ),
        run,
    )


def fixed(method: str) -> Line:
    """Return the line of a method whose responses all have the same length."""

    def run(bench: Bench) -> Outcome:
        workload = bench.workload.doing(method=method)
        warmup, steps = bench.pick((1, 1), (2, 4), (1, 4))
        sides, weights = in_turn(
            bench,
            workload,
            [
                ("kubealign", kubealign(workload), warmup, steps),
                ("TRL", peer("trl_online", ["default"], "TRL"), 1, bench.pick(1, 4, 4)),
            ],
            rounds=bench.pick(1, 1, 2),
        )
        ours, theirs = sides
        figures = {
            "kubealign": ours.step_seconds,
            "trl": theirs.step_seconds,
            "times": theirs.step_seconds / ours.step_seconds,
            "memory": ours.peak_bytes_of_all / theirs.peak_bytes_of_all,
        }
        return Outcome(figures, detail(sides, workload, weights))

    memory = (Aim("memory", "peak memory beside TRL", 0.7, at_least=False),) if method == "rloo" else ()
    return Line(
        f"{method}-fixed",
        f"{method.upper()} step, all answers of 64 tokens",
        "TRL",
        (Aim("times", "times TRL", 1.3), *memory),
        run,
    )


def _ppo(bench: Bench) -> Outcome:
    if not _PPO_PYTHON.is_file():
        raise RuntimeError(f"{_PPO_PYTHON} is missing: make .venv/.trl-ppo")
    base = bench.tailed
    workload = base.doing(method="ppo", prompts_per_step=base.sequences, samples_per_prompt=1)
    sides, weights = in_turn(
        bench,
        workload,
        [
            ("kubealign", kubealign(workload), 1, bench.pick(1, 3, 3)),
            ("TRL PPO", peer("trl_ppo", [], "TRL", str(_PPO_PYTHON)), 1, 1),
        ],
    )
    ours, theirs = sides
    figures = {
        "kubealign": ours.step_seconds,
        "trl": theirs.step_seconds,
        "times": theirs.step_seconds / ours.step_seconds,
        "memory": ours.peak_bytes_of_all / theirs.peak_bytes_of_all,
    }
    return Outcome(figures, detail(sides, workload, weights))


LINES = (
    tailed("rloo"),
    tailed("grpo"),
    fixed("rloo"),
    fixed("grpo"),
    Line(
        "ppo-tail",
        "PPO step, long-tailed answers",
        "TRL 1.12, the last with PPO",
        (Aim("times", "times TRL's PPO", 8.0),),
        _ppo,
    ),
)
