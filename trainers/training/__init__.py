"""The loop of one worker: data in, steps, checkpoints. It knows no Ray."""
