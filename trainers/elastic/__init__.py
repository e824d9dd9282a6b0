"""Decides what happens when workers and shards come and go: leases, placement, failures. Touches no machine."""
