"""Writes the repositories and digests of released images into the values of a chart.

`python3 .ci/pin_chart.py VALUES NAME=REPOSITORY@DIGEST...`: every block of VALUES whose repository is
kubealign-NAME gets the repository and the digest. The comments of the file stay. Images that the chart does
not name are left out.
"""

import re
import sys
from pathlib import Path

# Artifacts that the chart's values do not name: a job names the image of its Triton workers.
_NOT_IN_CHART = frozenset({"triton", "vllm"})
# The bus has no image by default; a release has one.
_BUS = "nats"


def pin(text: str, images: dict[str, tuple[str, str]]) -> str:
    """Return the text of values with images by digest.

    Args:
        images: Name -> repository and digest.

    Raises:
        ValueError: The values have no image of a name.
    """
    for name, (repository, digest) in images.items():
        if name in _NOT_IN_CHART:
            continue
        # The bus is the only image whose repository is empty.
        current = '""' if name == _BUS else f"kubealign-{name}"
        block = re.compile(
            rf"^(?P<indent> +)repository: {re.escape(current)}\n"
            r"(?P<between>(?:(?P=indent)(?:#.*|tag: .*)\n)*)"
            r'(?P=indent)digest: ""\n',
            re.MULTILINE,
        )
        replacement = rf"\g<indent>repository: {repository}\n\g<between>\g<indent>digest: {digest}\n"
        text, count = block.subn(replacement, text)
        if count != 1:
            blocks = f'blocks with `repository: {current}` and `digest: ""`'
            raise ValueError(f"image {name}: the values have {count} {blocks}, not one")
    return text


def _parse(argument: str) -> tuple[str, tuple[str, str]]:
    match = re.fullmatch(r"([a-z]+)=([^@\s]+)@(sha256:[0-9a-f]{64})", argument)
    if match is None:
        raise ValueError(f"argument held {argument!r}: it must be NAME=REPOSITORY@sha256:DIGEST")
    return match[1], (match[2], match[3])


def main(values: Path, arguments: list[str]) -> None:
    """Pin the images of the file in place."""
    values.write_text(pin(values.read_text(), dict(map(_parse, arguments))))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
