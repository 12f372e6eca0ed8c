"""The CustomResourceDefinition as the chart's file has it."""

from typing import Any

import yaml

from kubealign_operator.crd.definition import definition

_HEAD = "# Made from sdk/kubealign/spec by `make crd`.\n"


class _Whole(yaml.SafeDumper):
    """Writes everything out where it stands."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def manifest() -> str:
    """The YAML text, in an order that does not change without cause."""
    return _HEAD + yaml.dump(definition(), Dumper=_Whole, sort_keys=False, allow_unicode=True, width=110)
