"""Examples that are read one by one: the processes that read them, their files, and what they draw."""
