"""The cost of layers: counted in FLOPs, parameters and activities, and timed on the available devices."""
