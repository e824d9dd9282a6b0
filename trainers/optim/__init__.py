"""Optimizers, learning-rate schedules and scaling rules: pure functions, and state that is updated elementwise."""
