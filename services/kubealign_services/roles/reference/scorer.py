"""Scorer with the frozen reference model of the KL penalty."""

from kubealign_services.scoring.logprob_scorer import LogprobScorer


class ReferenceScorer(LogprobScorer):
    """Log-probabilities of the reference."""

    source = "reference"
