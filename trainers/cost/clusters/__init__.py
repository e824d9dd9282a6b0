"""Described clusters: which devices hang on which switch, and by which links. Imports no torch."""
