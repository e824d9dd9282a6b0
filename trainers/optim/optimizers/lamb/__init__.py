"""LAMB: Adam whose rate is adapted to each layer."""
