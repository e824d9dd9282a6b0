"""SGD with momentum."""
