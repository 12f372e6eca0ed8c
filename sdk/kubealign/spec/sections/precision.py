"""Numeric precision of models."""

from enum import StrEnum


class Precision(StrEnum):
    """Float32: everything in fp32.

    BFloat16: everything in bf16, except the trainer's master weights and optimiser state in fp32. Float16:
    the same in fp16, with dynamic loss scaling; not in the megatron backend.
    """

    FLOAT32 = "Float32"
    BFLOAT16 = "BFloat16"
    FLOAT16 = "Float16"

    @property
    def dtype_name(self) -> str:
        """Name of the dtype in torch, vLLM and TensorRT-LLM, such as `bfloat16`."""
        return self.value.lower()
