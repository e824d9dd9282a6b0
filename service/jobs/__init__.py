"""One job from its submission to its end: the queue, its lifecycle, its event log, and how it is shown."""
