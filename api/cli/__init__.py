"""The `millrace` command line."""
