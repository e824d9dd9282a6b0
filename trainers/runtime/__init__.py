"""Ray lives here and nowhere else in trainers: the actors of a run, its checkpoints and its event log."""
