"""What judges a run by its figures: whether it diverges, whether it gets better. They decide, and touch no machine."""
