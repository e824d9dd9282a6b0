"""The Python clients of a running service, with and without an event loop."""
