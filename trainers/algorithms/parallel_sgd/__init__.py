"""Local SGD with averaging."""
