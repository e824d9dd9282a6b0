"""What algorithms that seldom communicate are for: time and bytes to a target, over a slow link between two groups."""
