"""Advantages of samples, each of one sequence or of several."""

from kubealign_services.algorithms.contract import Algorithm
from kubealign_services.batch.packed import Batch
from kubealign_services.batch.samples import copy_columns, merge_samples


def add_advantages(algorithm: Algorithm, batch: Batch, state: dict[str, float]) -> dict[str, float]:
    """Add the columns of `Algorithm.advantages`; return the step's metrics.

    The algorithm sees one sequence for each sample (`merge_samples`): rewards, groups, baselines and KL sums
    are those of samples, and the time steps of an episode are the tokens with a loss of all its sequences, in
    order. Each sequence then has the columns of its tokens and of its sample. In GAE the value after the last
    token of a sequence is that of the first token of the next one, and 0 after the last sequence.
    """
    samples = merge_samples(batch)
    metrics = algorithm.advantages(samples, state)
    copy_columns(samples, batch)
    return metrics
