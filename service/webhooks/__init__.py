"""Signed messages to other servers about the states of jobs and sweeps, delivered until they are taken."""
