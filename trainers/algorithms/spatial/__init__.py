"""Convolutions by rows: each worker has some rows of every image."""
