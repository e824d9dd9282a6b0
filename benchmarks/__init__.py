"""Side-by-side measurements against peers, each with its dated result in `results/`."""
