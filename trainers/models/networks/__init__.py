"""The networks of our own that have a name."""
