"""Plugins of other packages: found, created with their parameters, refused with the wrong field."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kubealign.spec.algorithms import Algorithm
from kubealign.spec.sections.trackers import TrackerPlugin
from kubealign_services.algorithms.factory import make_algorithm
from kubealign_services.algorithms.offline.sft import SFTAlgorithm
from kubealign_services.runtime.plugins import PluginError
from kubealign_services.scoring.functions.child_main import FunctionError, call_reward, load_function
from kubealign_services.telemetry.trackers.contract import RunOutcome, TrackedJob
from kubealign_services.telemetry.trackers.plugin import (
    check_installed,
    check_parameters,
    make_plugin_tracker,
)
from support.reward_results import rewards

Install = Callable[[str, dict[str, str]], None]

ALGORITHM = """
from pydantic import BaseModel, Field
from kubealign_services.algorithms.offline.sft import SFTAlgorithm
from support.reward_results import rewards

class Parameters(BaseModel, extra="forbid"):
    share: float = Field(0.5, le=1)

class Ours(SFTAlgorithm):
    def __init__(self, entry):
        super().__init__(entry)
        self.share = Parameters.model_validate(entry.parameters).share
        if entry.rows_per_step > 512:
            raise ValueError("rowsPerStep is too large for us")
"""


def custom(**fields: Any) -> Algorithm:
    return Algorithm.model_validate({"customOffline": {"name": "ours", **fields}})


def test_algorithm_is_created_from_its_entry_point(install: Install) -> None:
    install(ALGORITHM, {"algorithms.ours": "Ours"})
    algorithm: Any = make_algorithm(custom(parameters={"share": 0.25}))
    assert algorithm.share == 0.25
    assert algorithm.policy_objective().outputs == {"logprobs"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"parameters": {"share": 7}},
            "spec.algorithm.customOffline.parameters.share: Input should be less than or equal to 1 "
            "(it holds 7)",
        ),
        (
            {"parameters": {"shares": 1}},
            "spec.algorithm.customOffline.parameters.shares: Extra inputs are not permitted (it holds 1)",
        ),
        ({"rowsPerStep": 1024}, "spec.algorithm.customOffline.parameters: rowsPerStep is too large for us"),
    ],
)
def test_parameters_refused_by_an_algorithm_are_named(
    fields: dict[str, Any], message: str, install: Install
) -> None:
    install(ALGORITHM, {"algorithms.ours": "Ours"})
    with pytest.raises(PluginError) as caught:
        make_algorithm(custom(**fields))
    assert str(caught.value) == message


def test_missing_plugin_lists_the_installed_ones(install: Install) -> None:
    install(ALGORITHM, {"algorithms.others": "Ours"})
    with pytest.raises(PluginError) as caught:
        make_algorithm(custom())
    assert str(caught.value).startswith(
        "spec.algorithm.customOffline.name: ours is not installed where the job runs; "
        "installed for kubealign.algorithms: "
    )
    assert "others" in str(caught.value)


def test_builtin_name_is_refused_as_a_plugin() -> None:
    with pytest.raises(PluginError, match=r"sft is a built-in algorithm: set spec.algorithm.sft"):
        make_algorithm(custom(name="sft"))


def test_plugin_with_the_name_of_a_builtin_does_not_replace_it(install: Install) -> None:
    install(ALGORITHM, {"algorithms.sft": "Ours"})
    assert type(make_algorithm(Algorithm.model_validate({"sft": {}}))) is SFTAlgorithm
    with pytest.raises(PluginError, match=r"customOffline.name: sft is a built-in algorithm"):
        make_algorithm(custom(name="sft"))


def test_name_registered_by_two_packages_is_refused(install: Install) -> None:
    install(ALGORITHM, {"algorithms.ours": "Ours"})
    install(ALGORITHM, {"algorithms.ours": "Ours"})
    with pytest.raises(PluginError, match="registered more than once: plugged_0:Ours and plugged_1:Ours"):
        make_algorithm(custom())


def test_import_failure_is_reported(install: Install) -> None:
    install("import not_there", {"algorithms.ours": "Ours"})
    with pytest.raises(PluginError, match=r"ours \(plugged_0:Ours\) cannot be imported: ModuleNotFoundError"):
        make_algorithm(custom())


REWARDS = """
class Scaled:
    def __init__(self, scale=1.0):
        if scale <= 0:
            raise ValueError(f"scale must be above 0, not {scale}")
        self.scale = scale

    def __call__(self, prompts, responses, answer, **columns):
        return [self.scale * (response == right) for response, right in zip(responses, answer)]

def counted(prompts, responses, letter="a", **columns):
    return [response.count(letter) for response in responses]

number = 5
"""

POINTS = {"rewards.scaled": "Scaled", "rewards.counted": "counted", "rewards.number": "number"}
ASKED = (["p", "q"], ["aab", "bb"])


def reward(name: str, **parameters: Any) -> Callable[..., Any]:
    return load_function({"plugin": name, "parameters": parameters})


def test_class_is_created_with_the_parameters(install: Install) -> None:
    install(REWARDS, POINTS)
    tripled = call_reward(reward("scaled", scale=3.0), *ASKED, {"answer": ["aab", "x"]})
    assert rewards(tripled) == [3.0, 0.0]
    assert rewards(call_reward(reward("scaled"), *ASKED, {"answer": ["x", "bb"]})) == [0.0, 1.0]


def test_function_gets_parameters_and_columns(install: Install) -> None:
    install(REWARDS, POINTS)
    assert rewards(call_reward(reward("counted"), *ASKED, {"answer": [1, 2]})) == [2.0, 0.0]
    # A parameter stands for the column of its name.
    counted = call_reward(reward("counted", letter="b"), *ASKED, {"letter": ["a", "a"]})
    assert rewards(counted) == [1.0, 2.0]


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("scaled", {"scale": -1}, "plugin.parameters: scale must be above 0, not -1"),
        (
            "scaled",
            {"skale": 1},
            "plugin.parameters: got an unexpected keyword argument 'skale'; it takes scale=1.0",
        ),
        ("number", {}, "plugin.name: number (plugged_0:number) is 5, which cannot be called"),
        (
            "lost",
            {},
            "plugin.name: lost is not installed where the job runs; installed for kubealign.rewards: counted",
        ),
    ],
)
def test_parameters_refused_by_a_reward_are_named(
    name: str, parameters: dict[str, Any], message: str, install: Install
) -> None:
    install(REWARDS, POINTS)
    with pytest.raises(FunctionError) as caught:
        reward(name, **parameters)
    assert message in str(caught.value)


TRACKER = """
class Kept:
    def __init__(self, job, folder, words):
        self.path = folder / "kept.txt"
        self.words = [job.name, *words]

    def step(self, step, fence, metrics):
        self.words.append(str(step))

    def close(self, ending):
        self.path.write_text(" ".join(self.words))
"""


def test_tracker_gets_the_job_its_folder_and_the_parameters(install: Install, tmp_path: Path) -> None:
    install(TRACKER, {"trackers.kept": "Kept"})
    plugin = TrackerPlugin(name="kept", parameters={"words": ["a", "b"]})
    check_parameters(plugin, "ours")
    tracker = make_plugin_tracker(plugin, "ours", TrackedJob("sums", "default", {}), tmp_path)
    tracker.step(7, 1, {})
    tracker.close(RunOutcome.SUCCEEDED)
    assert (tmp_path / "kept.txt").read_text() == "sums a b 7"


def test_tracker_parameters_are_checked_before_the_job(install: Install) -> None:
    install(TRACKER, {"trackers.kept": "Kept"})
    with pytest.raises(
        PluginError, match=r"ours: plugin.parameters: missing a required .*'words'; it takes words"
    ):
        check_parameters(TrackerPlugin(name="kept"), "ours")
    with pytest.raises(
        PluginError, match=r"ours: plugin.name: lost is not installed .* kubealign.trackers: kept"
    ):
        check_installed(TrackerPlugin(name="lost"), "ours")
