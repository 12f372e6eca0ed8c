"""Rewards in the box: rules that check a response, most of them against the row's answer."""
