"""Examples of which each worker holds its own, and which move between workers."""
