"""Of what numbers a model is made."""

from enum import StrEnum


class Precision(StrEnum):
    """Float32: all in fp32. BFloat16: in bf16, but for the trainer's master weights and optimiser in fp32."""

    FLOAT32 = "Float32"
    BFLOAT16 = "BFloat16"
