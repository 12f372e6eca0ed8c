"""`python -m kubealign_operator.crd [--write PATH]`: write the CustomResourceDefinition as YAML."""

from kubealign.generated_file import print_or_write
from kubealign_operator.crd.definition import crd_manifest

if __name__ == "__main__":
    print_or_write(crd_manifest)
