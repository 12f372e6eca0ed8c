"""Stand-in for the package tensorrt_llm."""

from tensorrt_llm.sampling_params import SamplingParams

__all__ = ["SamplingParams"]
