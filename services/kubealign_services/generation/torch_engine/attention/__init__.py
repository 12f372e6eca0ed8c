"""Attention of one forward pass: the plan interface, and its implementations by gathering, by a CPU kernel
and by FlashAttention.
"""
