"""The Megatron training backend, on megatron-core."""

import warnings

# Transformer Engine and apex are absent by design; the warnings would fill a page of each rank's log.
warnings.filterwarnings("ignore", category=UserWarning, module=r"megatron\.core")
