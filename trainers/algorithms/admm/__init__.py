"""The alternating direction method of multipliers."""
