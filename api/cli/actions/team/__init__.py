"""The commands about what a team shares."""
