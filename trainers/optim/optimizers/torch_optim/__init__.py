"""Any optimizer of torch's kind, by its name."""
