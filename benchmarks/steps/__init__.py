"""What single steps cost: an update by each optimizer, and what a step takes besides its computing."""
