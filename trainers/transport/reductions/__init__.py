"""All-reduce over point-to-point messages: one file an algorithm, and the choice among them."""
