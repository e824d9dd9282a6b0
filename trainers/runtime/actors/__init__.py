"""The Ray actors of a run: thin shells around what other folders do."""
