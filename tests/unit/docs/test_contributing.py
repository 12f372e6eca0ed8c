"""The worked tasks of docs/contributing work: their edits are performed on a copy of the sources."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.doc_blocks import ROOT

FOLDER = ROOT / "docs" / "contributing"
PACKAGES = ("sdk", "services", "operator")
COPIED = (*PACKAGES, "docs", "charts", "tests/support")
SECONDS = 120

pytestmark = [pytest.mark.timeout(150), pytest.mark.slow]

_BLOCK = re.compile(
    r"^(?:File: `(?P<path>[^`\n]+)`\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)


class PageError(AssertionError):
    """An edit of a page that cannot be performed: names the page, the file and the lines."""


@dataclass(frozen=True)
class NewFile:
    """A new file that a page adds."""

    path: str
    text: str


@dataclass(frozen=True)
class Hunk:
    """One place of a `diff` block, without line numbers: the lines before and after the edit."""

    path: str
    before: list[str]
    after: list[str]


def page_edits(text: str) -> Iterator[NewFile | Hunk]:
    """Yield the edits of a page in their order."""
    for block in _BLOCK.finditer(text):
        if block["path"] is not None:
            yield NewFile(block["path"], block["text"])
        elif block["language"] == "diff":
            for part in re.split(r"^--- ", block["text"], flags=re.MULTILINE)[1:]:
                path, *hunks = re.split(r"\n@@\n", part)
                for hunk in hunks:
                    lines = hunk.splitlines()
                    before = [line[1:] for line in lines if not line.startswith("+")]
                    yield Hunk(path, before, [line[1:] for line in lines if not line.startswith("-")])


def perform(edit: NewFile | Hunk, root: Path, page: str) -> None:
    """Perform an edit below `root`. Raises PageError."""
    path = root / edit.path
    if isinstance(edit, NewFile):
        if path.exists() or (ROOT / edit.path).exists():
            raise PageError(f"{page}: {edit.path} is added, and exists already")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(edit.text, encoding="utf-8")
        return
    if not path.is_file():
        raise PageError(f"{page}: {edit.path} is edited, and does not exist")
    lines = path.read_text(encoding="utf-8").splitlines()
    count = len(edit.before)
    places = [i for i in range(len(lines) - count + 1) if lines[i : i + count] == edit.before]
    if not count or len(places) != 1:
        anchor = "\n".join(edit.before) or "(no line)"
        raise PageError(f"{page}: {edit.path} has {len(places)} places, and not one, with\n{anchor}")
    lines[places[0] : places[0] + count] = edit.after
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def check(page: str, root: Path, script: str) -> None:
    """Perform the page's edits on a copy of the sources, then run the script and the page's tests there."""
    edits = list(page_edits((FOLDER / page).read_text(encoding="utf-8")))
    for name in COPIED:
        shutil.copytree(ROOT / name, root / name)
    shutil.copy2(ROOT / "pyproject.toml", root)
    for edit in edits:
        perform(edit, root, page)
    tests = [edit.path for edit in edits if isinstance(edit, NewFile) and edit.path.startswith("tests/")]
    assert tests, f"{page} adds no test"
    _run(page, root, ["-c", _PREAMBLE + script, *tests])


#: Runs the page's tests after the script, in the same process: torch is imported once.
_PREAMBLE = """\
import sys
from pathlib import Path

import kubealign
import kubealign_operator
import kubealign_services
import pytest

for package in (kubealign, kubealign_operator, kubealign_services):
    assert Path(package.__file__).is_relative_to(Path.cwd()), package.__file__
plugins = [f"-p{name}" for name in ("no:cacheprovider", "pytest_asyncio.plugin", "pytest_timeout")]
result = pytest.main(["-q", *plugins, "-o", "addopts=--import-mode=importlib", *sys.argv[1:]])
assert result == 0, "the page's own tests fail"
"""


def _run(page: str, root: Path, arguments: Sequence[str]) -> None:
    folders = (*(root / name for name in PACKAGES), root / "tests")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, folders)),
        "OMP_NUM_THREADS": "1",
        # The cached kernels belong to the original paths, and no page runs one.
        "NUMBA_DISABLE_JIT": "1",
        # Only the plugins that the tests need: all of them take seconds to import.
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    ended = subprocess.run(
        [sys.executable, *arguments],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert ended.returncode == 0, f"{page} does not work:\n{ended.stdout[-4000:]}\n{ended.stderr[-4000:]}"


def test_algorithm(tmp_path: Path) -> None:
    check(
        "add-an-algorithm.md",
        tmp_path,
        """
import torch
from kubealign.cli.commands.spec.init import algorithm_names
from kubealign.spec.docs.job_template import job_template
from kubealign.spec.job import AlignmentJob
from kubealign_services.algorithms.contract import ModelOutputs
from kubealign_services.algorithms.factory import make_algorithm
from support.batches import random_batch

assert "slic" in algorithm_names()
job = AlignmentJob.from_yaml(job_template("slic", "example"))
assert job.spec.algorithm.member == "slic"
objective = make_algorithm(job.spec.algorithm).policy_objective()
batch = random_batch([2, 4], [0, 0])
objective.prepare(batch)
logprobs = torch.full((len(batch.tokens),), -0.25, requires_grad=True)
terms = objective.loss(ModelOutputs(logprobs=logprobs), batch)
# log p is -0.5 and -1: the hinge is 1 + 0.5 - 1, the likelihood 0.1 * 0.5.
assert abs(float(terms.loss) - 0.55) < 1e-6, terms.loss
terms.loss.backward()
assert logprobs.grad.abs().max() > 0.1
""",
    )


def test_metric(tmp_path: Path) -> None:
    check(
        "add-a-metric.md",
        tmp_path,
        """
import torch
from kubealign_services.roles.driver.metrics.batch_metrics import response_metrics
from support.batches import random_batch

batch = random_batch([2, 6], [0, 0])
batch.token_columns["weight_version"] = torch.zeros(len(batch.tokens), dtype=torch.int32)
assert response_metrics(batch, 0)["response/length_std"] == 2
for path in ("docs/metrics.md", "services/kubealign_dashboard/page/js/curves/metric_panels.js"):
    assert "response/length_std" in Path(path).read_text(), path
""",
    )


def test_rollout_engine(tmp_path: Path) -> None:
    check(
        "add-a-rollout-engine.md",
        tmp_path,
        """
import yaml
from kubealign.spec.docs.job_template import job_template
from kubealign.spec.errors import SpecErrors
from kubealign.spec.job import AlignmentJob
from kubealign_operator.crd.cross_field_rules import cross_field_rules
import kubealign.planning.job_plan

document = yaml.safe_load(job_template("grpo", "example"))
document["spec"]["rollout"] = {"engine": {"transformers": {"maxSequences": 4}}}
job = AlignmentJob.from_yaml(yaml.safe_dump(document))
assert (job.spec.rollout.engine.member, job.spec.in_flight) == ("transformers", "Drain")
assert job.spec.effective_rollout.engine.value.effective_precision == "Float32"
document["spec"]["rollout"]["refit"] = {"inFlight": "Interrupt"}
with pytest.raises(SpecErrors, match="transformers cannot tell"):
    AlignmentJob.from_yaml(yaml.safe_dump(document))
assert any("rollout.engine.transformers)" in rule.expression for rule in cross_field_rules())
""",
    )


def test_role(tmp_path: Path) -> None:
    check(
        "add-a-role.md",
        tmp_path,
        """
import json
import tomllib
import yaml
from kubealign.diagnostics.health.processes import _REPORTING_ROLES
from kubealign.role_specs import display_position
from kubealign.roles import roles
from kubealign.spec.docs.job_template import job_template
from kubealign.spec.errors import SpecErrors
from kubealign.spec.job import AlignmentJob
from kubealign_operator.crd.cross_field_rules import cross_field_rules
from kubealign_operator.manifests.context import RenderContext
from kubealign_operator.manifests.pod import build_pod
from kubealign_operator.planner.validation import parse_job
from support.rendering.jobs import PLATFORM, UID, ppo

archived = parse_job(ppo(archive={"podTemplate": {"metadata": {"labels": {"archived": "yes"}}}}))
processes = roles(archived)
(archive,) = [process for process in processes if process.role == "archive"]
assert (archive.name, archive.module) == ("archive-0", "kubealign_services.roles.archive.main")
assert "archive" in processes[-1].after and archive.module in sys.modules
assert "archive" in _REPORTING_ROLES and archive.elastic
assert display_position("teacher") < display_position("archive") < display_position("prepare")
assert "archive" not in {process.role for process in roles(parse_job(ppo()))}
document = yaml.safe_load(job_template("sft", "example"))
document["spec"]["archive"] = {}
with pytest.raises(SpecErrors, match="sft does not sample"):
    AlignmentJob.from_yaml(yaml.safe_dump(document))
assert any(rule.message == "sft does not sample: remove it" for rule in cross_field_rules())
context = RenderContext(archived.name, "team", UID, archived, PLATFORM)
pod = build_pod(context, archive, 0)
assert archive.module in str(pod) and pod["metadata"]["labels"]["archived"] == "yes"
json.loads(Path("charts/kubealign/values.schema.json").read_text())
contracts = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
assert sum("kubealign_services.roles.archive" in contract.get("modules", ()) for contract in contracts) == 1
""",
    )


def test_an_edit_without_a_unique_context_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("one\ntwo\ntwo\n")
    (edit, twice, new) = page_edits(
        "```diff\n--- a.py\n@@\n one\n+more\n@@\n-two\n```\n\nFile: `b.py`\n```python\nthree\n```\n"
    )
    perform(edit, tmp_path, "page.md")
    perform(new, tmp_path, "page.md")
    assert (tmp_path / "a.py").read_text() == "one\nmore\ntwo\ntwo\n"
    assert (tmp_path / "b.py").read_text() == "three\n"
    with pytest.raises(PageError, match=r"page.md: a.py has 2 places, and not one, with\ntwo"):
        perform(twice, tmp_path, "page.md")
    with pytest.raises(PageError, match=r"page.md: b.py is added, and exists already"):
        perform(new, tmp_path, "page.md")


def test_the_index_names_all_pages() -> None:
    pages = {path.name for path in FOLDER.glob("add-*.md")}
    assert set(re.findall(r"\]\((add-[^)]+)\)", (FOLDER / "README.md").read_text("utf-8"))) == pages
    assert len(pages) == 4
