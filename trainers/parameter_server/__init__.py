"""Gradients to shards, and parameters back."""
