"""The CustomResourceDefinition as the YAML file of the chart."""

from typing import Any

import yaml

from kubealign_operator.crd.definition import definition

_HEADER = "# Generated from sdk/kubealign/spec by `make crd`.\n"


class _NoAliasDumper(yaml.SafeDumper):
    """YAML dumper without anchors and aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def crd_manifest() -> str:
    """Return the YAML text, in a stable order."""
    return _HEADER + yaml.dump(definition(), Dumper=_NoAliasDumper, sort_keys=False, allow_unicode=True, width=110)
