"""Alignment algorithms: pure maths on packed batches, without files, network or clock."""
