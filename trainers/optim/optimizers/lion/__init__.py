"""Lion: updates by the sign of a mean of gradients."""
