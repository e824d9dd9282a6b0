"""The matrix products of fully connected layers, each through the library that is faster on this processor."""
