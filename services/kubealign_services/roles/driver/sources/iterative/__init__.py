"""Iterative algorithms: rounds that generate and label the rows that the next steps train on."""
