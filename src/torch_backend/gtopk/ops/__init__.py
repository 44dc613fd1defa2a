"""Collectives: options, the sparse all-reduce, plans."""
