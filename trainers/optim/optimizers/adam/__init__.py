"""Adam, and AdamW with its decoupled weight decay."""
