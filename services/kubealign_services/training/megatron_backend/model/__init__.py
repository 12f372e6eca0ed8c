"""The model of one pipeline stage, built from megatron-core's layers."""
