"""Models by name, their initial weights, and dropout that can be replayed. Imports nothing by itself."""
