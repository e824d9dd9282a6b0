"""LARS: momentum whose rate is adapted to each layer."""
