"""Starting waiting jobs: which of them, what is checked before, and how."""
