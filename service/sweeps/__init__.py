"""Sweeps: runs of one job with some fields varied, executed by Ray Tune, and the store of their trials."""
