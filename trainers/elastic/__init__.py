"""Who trains which examples. These modules decide and touch no machine."""
