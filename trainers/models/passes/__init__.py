"""How a model's forward pass is made: in which numbers, and what happens in front of its layers."""
