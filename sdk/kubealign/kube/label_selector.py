"""Label selectors in kubectl's -l syntax: `a=b,c!=d,e in (f,g),h notin (i),j,!k`."""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache

from kubealign.errors import JobInvalid
from kubealign.spec.errors import SpecError

#: Tests the labels of an object.
LabelPredicate = Callable[[Mapping[str, str]], bool]

_COMMA = re.compile(r",(?![^(]*\))")
_KEY = r"(?P<key>[A-Za-z0-9]([\w./-]*[A-Za-z0-9])?)"
_VALUE = r"[\w.-]*"
_EXISTS = re.compile(rf"(?P<absent>!?)\s*{_KEY}")
_EQUALS = re.compile(rf"{_KEY}\s*(?P<sign>==?|!=)\s*(?P<value>{_VALUE})")
_IN_SET = re.compile(rf"{_KEY}\s+(?P<sign>in|notin)\s*\(\s*(?P<values>{_VALUE}(\s*,\s*{_VALUE})*)\s*\)")


@lru_cache(maxsize=256)
def parse_label_selector(text: str) -> LabelPredicate:
    """Return the predicate of a label selector: all its requirements must hold.

    An empty selector matches every object. Raises JobInvalid.
    """
    if not text.strip():
        return lambda labels: True
    requirements = [_parse_requirement(part.strip(), text) for part in _COMMA.split(text)]
    return lambda labels: all(met(labels) for met in requirements)


def _parse_requirement(part: str, text: str) -> LabelPredicate:
    if match := _EXISTS.fullmatch(part):
        key, expected = match["key"], not match["absent"]
        return lambda labels: (key in labels) is expected
    if match := _EQUALS.fullmatch(part):
        return _value_in(match["key"], frozenset({match["value"]}), match["sign"] != "!=")
    if match := _IN_SET.fullmatch(part):
        values = frozenset(value.strip() for value in match["values"].split(","))
        return _value_in(match["key"], values, match["sign"] == "in")
    message = "cannot be parsed: write a=b, a!=b, a in (b,c), a notin (b,c), a or !a, separated by commas"
    error = SpecError(message, "labelSelector", part or text)
    raise JobInvalid(str(error), [error])


def _value_in(key: str, values: frozenset[str], expected: bool) -> LabelPredicate:
    # An object without the label matches != and notin, like in Kubernetes.
    return lambda labels: (labels.get(key) in values) is expected
