"""Elastic averaging SGD: workers explore by themselves, tied to a common centre."""
