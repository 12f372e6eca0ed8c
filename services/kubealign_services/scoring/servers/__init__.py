"""Rewards of other servers: a service with kubealign's HTTP contract, and a language model as a judge."""
