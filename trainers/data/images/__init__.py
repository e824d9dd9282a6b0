"""How training images are varied and mixed."""
