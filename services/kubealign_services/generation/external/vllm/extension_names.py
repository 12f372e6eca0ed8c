"""Names that the worker's extension shares with the code that starts and calls vLLM.

It imports nothing, because a server's workers may import it without kubealign's dependencies.
"""

#: Import path of the class that vLLM mixes into its worker.
WORKER_EXTENSION = "kubealign_services.generation.external.vllm.worker.VllmWorkerExtension"
#: Name of a request's extra argument: the temperature of the log-probabilities of its prompt.
SCORING_TEMPERATURE = "kubealign_scoring_temperature"
