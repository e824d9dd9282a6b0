"""The composition root: settings, and the parts put together."""
