"""`python -m kubealign_operator.crd [--write PATH]`: the CustomResourceDefinition as YAML."""

import argparse
import sys
from pathlib import Path

from kubealign_operator.crd.file import manifest


def main() -> None:
    """Write the definition to stdout, or to the file that --write names."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--write", type=Path, metavar="PATH")
    path: Path | None = parser.parse_args().write
    if path is None:
        sys.stdout.write(manifest())
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(manifest(), encoding="utf-8")


if __name__ == "__main__":
    main()
