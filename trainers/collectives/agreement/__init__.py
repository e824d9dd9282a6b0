"""Numbers of a step that all workers must know: its weight, its norm, the noise of its gradients."""
