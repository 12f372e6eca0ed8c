"""The driver: requests rollouts, assembles batches, commands the trainer and the critic, and writes
checkpoints.
"""
