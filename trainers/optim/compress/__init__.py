"""What of a vector travels when it is compressed, and how what does not is kept for the next time."""
