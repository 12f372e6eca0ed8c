"""Published results below the address of a job's copies (spec.checkpoint.uri)."""

import re

from kubealign.object_storage.bucket import Bucket
from kubealign.object_storage.errors import ObjectMissing
from kubealign.object_storage.folders import read_manifest

#: Folder of the results below the address.
RESULTS_FOLDER = "results"

_RESULT_NAME = re.compile(r"step-(?P<step>\d{8,})-fence-(?P<fence>\d+)")


def result_name(step: int, fence: int) -> str:
    """Return the name of the result of a step, published by the driver with this fence."""
    return f"step-{step:08d}-fence-{fence}"


async def newest_result(bucket: Bucket) -> str | None:
    """Return the folder of the newest complete result; None: there is none.

    The highest fence comes first: its driver has taken over from those with lower ones.

    Raises StorageUnavailable, StorageRefused and ObjectCorrupted.
    """
    matches = [_RESULT_NAME.fullmatch(name) for name in await bucket.list_folders(RESULTS_FOLDER)]
    numbers = sorted(
        ((int(match["fence"]), int(match["step"])) for match in matches if match is not None), reverse=True
    )
    for fence, step in numbers:
        folder = f"{RESULTS_FOLDER}/{result_name(step, fence)}"
        try:
            await read_manifest(bucket, folder)
        except ObjectMissing:
            continue  # incomplete
        return folder
    return None
