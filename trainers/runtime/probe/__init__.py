"""Measures the links of a cluster with the transports of a run."""
