"""Models of jobs that are registered as versions of a name."""
