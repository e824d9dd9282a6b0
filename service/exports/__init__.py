"""Finished models in other formats."""
