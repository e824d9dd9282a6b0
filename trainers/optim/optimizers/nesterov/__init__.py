"""SGD with Nesterov's momentum."""
