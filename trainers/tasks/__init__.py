"""What is learned: the loss and the metrics of a minibatch, and the model that fits the data."""
