"""Sums and averages that are made beside the caller, on lanes."""
