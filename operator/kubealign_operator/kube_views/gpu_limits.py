"""GPUs in the resource limits of a container."""

from collections.abc import Mapping
from typing import Any

#: Resources of device plugins that are GPUs, or, with the prefix, slices of GPUs.
_GPU_RESOURCES = (
    "nvidia.com/gpu",
    "nvidia.com/gpu.shared",
    "amd.com/gpu",
    "gpu.intel.com/i915",
    "gpu.intel.com/xe",
)
_GPU_SLICE_PREFIX = "nvidia.com/mig-"


def gpu_count(limits: Mapping[str, Any]) -> int:
    """Return the number of GPUs, or of slices of GPUs, in resource limits; other devices do not count."""
    return sum(
        int(str(amount))
        for name, amount in limits.items()
        if (name in _GPU_RESOURCES or name.startswith(_GPU_SLICE_PREFIX)) and str(amount).isdecimal()
    )
