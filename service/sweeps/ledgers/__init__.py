"""The ledgers of sweeps in the service's database, and brought back from there."""
