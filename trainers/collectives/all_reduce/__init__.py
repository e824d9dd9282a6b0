"""All-reduces over messages (paper 4, section 4.1)."""
