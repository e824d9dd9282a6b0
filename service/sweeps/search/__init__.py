"""Which trial comes next, and which goes on: what Ray Tune is given."""
