"""What a shard makes of gradients that come late: computed from older parameters than those they meet."""
