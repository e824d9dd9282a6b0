"""Gradients among workers."""
