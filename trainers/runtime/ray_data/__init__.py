"""A Ray Dataset as a run holds it."""
