"""Real coordinator, shards, leases and event log under many workers that sleep instead of computing."""
