"""The Ray side of training, and the only part of trainers that imports Ray: actors, their control, the event log."""
