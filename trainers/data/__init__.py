"""Datasets, the random draws of augmentation and order, and minibatches. This file imports nothing."""
