"""Numeric precision of models."""

from enum import StrEnum


class Precision(StrEnum):
    """Float32: everything in fp32.

    BFloat16: everything in bf16, except the trainer's master weights and optimiser state in fp32.
    """

    FLOAT32 = "Float32"
    BFLOAT16 = "BFloat16"
