import warnings

# That there is neither Transformer Engine nor apex is so by design, and would be a page in each rank's log.
warnings.filterwarnings("ignore", category=UserWarning, module=r"megatron\.core")
