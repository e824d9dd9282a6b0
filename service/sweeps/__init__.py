"""Sweeps: many runs of one job with some fields varied, run by Ray Tune, and the ledger that says which are done."""
