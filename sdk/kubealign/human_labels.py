"""Labels that people give to responses of validations, and the training rows that follow from them."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kubealign.client.records import JobRef

#: Longest reason, in characters.
MAX_REASON = 2000


class Verdict(StrEnum):
    """Judgement of a person: LEFT, RIGHT, BOTH_GOOD and BOTH_BAD of a pair, WRONG of one response."""

    LEFT = "left"
    RIGHT = "right"
    BOTH_GOOD = "bothGood"
    BOTH_BAD = "bothBad"
    WRONG = "wrong"


@dataclass(frozen=True)
class LabelledResponse:
    """Response of a job at a step."""

    namespace: str
    job: str
    step: int
    response: str


@dataclass(frozen=True)
class HumanLabel:
    """Label of a pair, or of one response, which is `left`.

    `subject`: identity of what is labelled. `verdict`: None withdraws earlier labels. `time`: seconds since
    the epoch. `prompt_id`: identity of the prompt among those of its validation.
    """

    subject: str
    verdict: Verdict | None
    author: str
    time: float
    prompt_id: str
    prompt: str
    left: LabelledResponse
    right: LabelledResponse | None = None
    reason: str = ""

    def to_json(self) -> str:
        """Return the label as one line of JSON."""
        return json.dumps(asdict(self), ensure_ascii=False)


def label_subject(prompt_id: str, *sides: "tuple[JobRef, int]") -> str:
    """Return the identity of a response, or of a pair, whose sides may be given in either order."""
    named = sorted([ref.namespace, ref.name, step] for ref, step in sides)
    return hashlib.sha256(json.dumps([prompt_id, named]).encode()).hexdigest()[:32]


def parse_label(document: Mapping[str, Any]) -> HumanLabel | None:
    """Parse a label of `HumanLabel.to_json`; None for any other object."""
    try:
        right, verdict = document["right"], document["verdict"]
        return HumanLabel(
            subject=str(document["subject"]),
            verdict=None if verdict is None else Verdict(verdict),
            author=str(document["author"]),
            time=float(document["time"]),
            prompt_id=str(document["prompt_id"]),
            prompt=str(document["prompt"]),
            left=_parse_response(document["left"]),
            right=None if right is None else _parse_response(right),
            reason=str(document["reason"]),
        )
    except (KeyError, TypeError, ValueError):
        return None


def _parse_response(document: Mapping[str, Any]) -> LabelledResponse:
    return LabelledResponse(
        str(document["namespace"]), str(document["job"]), int(document["step"]), str(document["response"])
    )


def current_labels(labels: Iterable[HumanLabel]) -> list[HumanLabel]:
    """Return the last label of each subject, whoever set it, in the order of their time. A subject whose last
    label was withdrawn has none.
    """
    # Labels of equal time count in the order in which they were stored.
    newest = {label.subject: label for label in sorted(labels, key=lambda label: label.time)}
    return sorted((label for label in newest.values() if label.verdict), key=lambda label: label.time)


def preference_rows(labels: Iterable[HumanLabel]) -> list[dict[str, str]]:
    """Return rows for `data.preferences` with the default format: prompt, chosen, rejected.

    Labels that prefer neither response have no row.
    """
    rows = []
    for label in labels:
        if label.right is None or label.verdict not in (Verdict.LEFT, Verdict.RIGHT):
            continue
        texts = label.left.response, label.right.response
        chosen, rejected = texts if label.verdict is Verdict.LEFT else texts[::-1]
        rows.append({"prompt": label.prompt, "chosen": chosen, "rejected": rejected})
    return rows


def unpaired_rows(labels: Iterable[HumanLabel]) -> list[dict[str, str | bool]]:
    """Return rows for `data.unpaired` with the default format: prompt, response, label.

    A preference says nothing about a single response, and has no row.
    """
    is_good = {Verdict.BOTH_GOOD: True, Verdict.BOTH_BAD: False, Verdict.WRONG: False}
    return [
        {"prompt": label.prompt, "response": side.response, "label": is_good[label.verdict]}
        for label in labels
        if label.verdict in is_good
        for side in (label.left, label.right)
        if side is not None
    ]


class LabelFormat(StrEnum):
    """Form of exported labels: rows of `data.preferences` or of `data.unpaired`, or the labels themselves."""

    PREFERENCES = "preferences"
    UNPAIRED = "unpaired"
    LABELS = "labels"


def export_labels(labels: Iterable[HumanLabel], form: LabelFormat) -> str:
    """Return the current labels as JSON lines."""
    current = current_labels(labels)
    if form is LabelFormat.LABELS:
        return "".join(f"{label.to_json()}\n" for label in current)
    rows = preference_rows(current) if form is LabelFormat.PREFERENCES else unpaired_rows(current)
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
