"""`python -m kubealign_operator.crd [--write PATH]`: write the CustomResourceDefinition as YAML."""

from kubealign.generated import show_or_write
from kubealign_operator.crd.file import manifest

if __name__ == "__main__":
    show_or_write(manifest)
