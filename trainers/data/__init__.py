"""Datasets, the random draws of augmentation and order, and minibatches. Imports nothing by itself."""
