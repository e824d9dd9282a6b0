"""Finished models: in other formats, and registered as versions of a name."""
