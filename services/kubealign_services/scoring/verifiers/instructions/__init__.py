"""Instruction checks of IFEval (Zhou et al. 2023, "Instruction-Following Evaluation for Large Language
Models"): one module for each kind of instruction, and a registry of all by their ids.
"""
