"""Synchronous groups, asynchronous among each other."""
