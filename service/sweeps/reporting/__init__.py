"""The report of a sweep and its figures, made once for each version of its trials."""
