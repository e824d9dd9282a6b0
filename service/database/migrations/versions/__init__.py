"""One step of the database a file, in the order of their numbers."""
