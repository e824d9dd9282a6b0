"""Models by name, their initial weights, and dropout that can be replayed. This file imports nothing."""
