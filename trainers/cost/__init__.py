"""What a layer costs: counted in FLOPs, parameters and activities, and timed on the devices that are there."""
