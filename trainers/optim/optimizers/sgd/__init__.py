"""Plain stochastic gradient descent."""
