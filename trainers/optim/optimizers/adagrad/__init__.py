"""AdaGrad."""
