"""Filters, order and pages of lists, and label selectors."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubealign.client.errors import JobInvalid
from kubealign.client.query import select_page
from kubealign.client.records import ListQuery
from kubealign.kube.label_selector import parse_label_selector


@dataclass(frozen=True)
class Row:
    name: str
    namespace: str = "default"
    labels: dict[str, str] = field(default_factory=dict)
    phase: str = "Running"
    algorithm: str = "ppo"
    created: float = 0.0
    step: int = 0
    reward: float | None = None


ROWS = [
    Row("alpha", labels={"team": "a"}, created=3, step=5, reward=0.5),
    Row("beta", "other", {"team": "b", "tier": "gold"}, "Failed", "sft", 2, 9),
    Row("alphabet", labels={"team": "b"}, phase="Succeeded", created=1, step=5, reward=-0.25),
]


def names(query: ListQuery) -> list[str]:
    return [row.name for row in select_page(ROWS, query).jobs]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (ListQuery(), ["alpha", "beta", "alphabet"]),
        (ListQuery(sort="created"), ["alphabet", "beta", "alpha"]),
        (ListQuery(namespace="default"), ["alpha", "alphabet"]),
        (ListQuery(namespaces=frozenset({"other"})), ["beta"]),
        (ListQuery(search="ALPHA"), ["alpha", "alphabet"]),
        (ListQuery(phases=frozenset({"Failed", "Succeeded"}), sort="name"), ["alphabet", "beta"]),
        (ListQuery(algorithms=frozenset({"sft"})), ["beta"]),
        (ListQuery(label_selector="team in (a, c),tier!=gold"), ["alpha"]),
        (ListQuery(sort="-step"), ["beta", "alpha", "alphabet"]),
        # Without a reward: sorted below every job that has one.
        (ListQuery(sort="-reward"), ["alpha", "alphabet", "beta"]),
        (ListQuery(sort="phase"), ["beta", "alpha", "alphabet"]),
    ],
)
def test_query_selects_jobs(query: ListQuery, expected: list[str]) -> None:
    assert names(query) == expected


@given(
    st.lists(
        st.builds(
            Row,
            name=st.text("abc", min_size=1, max_size=3),
            namespace=st.sampled_from(["a", "b"]),
            created=st.integers(0, 3).map(float),
            step=st.integers(0, 2),
            reward=st.none() | st.floats(-1, 1),
        ),
        unique_by=lambda row: (row.namespace, row.name),
    ),
    st.sampled_from(["name", "created", "phase", "step", "reward"]).flatmap(
        lambda name: st.sampled_from([name, f"-{name}"])
    ),
    st.integers(1, 4),
    st.integers(0, 20),
)
def test_pages_contain_each_job_once_despite_deletions(
    rows: list[Row], sort: str, limit: int, gone: int
) -> None:
    all_names = select_page(rows, ListQuery(sort=sort, limit=500)).jobs
    seen: list[Row] = []
    after = ""
    while True:
        page = select_page(rows, ListQuery(sort=sort, limit=limit, after=after))
        seen += page.jobs
        after = page.next
        if not after:
            break
        # The last job of the page is deleted: the next page still begins after its position.
        if gone and seen[-1] in rows:
            rows = [row for row in rows if row != seen[-1]]
    assert seen == all_names


@pytest.mark.parametrize(
    ("query", "field"),
    [
        (ListQuery(limit=0), "limit"),
        (ListQuery(limit=501), "limit"),
        (ListQuery(sort="age"), "sort"),
        (ListQuery(after="%%%"), "after"),
        (ListQuery(after=select_page(ROWS, ListQuery(limit=1, sort="name")).next), "after"),
        (ListQuery(label_selector="a=b,,c"), "labelSelector"),
        (ListQuery(label_selector="a in b"), "labelSelector"),
    ],
)
def test_invalid_query_names_its_field(query: ListQuery, field: str) -> None:
    with pytest.raises(JobInvalid) as caught:
        select_page(ROWS, query)
    assert caught.value.errors[0].path == field


@pytest.mark.parametrize(
    ("text", "labels", "met"),
    [
        ("", {}, True),
        ("a=b", {"a": "b"}, True),
        ("a==b", {"a": "c"}, False),
        ("a!=b", {}, True),
        ("a!=b", {"a": "b"}, False),
        ("a", {"a": ""}, True),
        ("a", {}, False),
        ("!a", {}, True),
        ("! a", {"a": "1"}, False),
        ("a in (b,c)", {"a": "c"}, True),
        ("a notin (b, c)", {"a": "c"}, False),
        ("a notin (b)", {}, True),
        ("kueue.x-k8s.io/queue-name=align , a", {"kueue.x-k8s.io/queue-name": "align", "a": ""}, True),
        ("a=", {"a": ""}, True),
    ],
)
def test_label_selectors_have_kubectl_syntax(text: str, labels: dict[str, str], met: bool) -> None:
    assert parse_label_selector(text)(labels) is met
