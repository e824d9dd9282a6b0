"""From the results of a sweep's trials to an answer: how large the batch can be, and what the learning rate must do."""
