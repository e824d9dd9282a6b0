"""What a user asks before a job runs: a plan, and the links of the cluster that it needs."""
