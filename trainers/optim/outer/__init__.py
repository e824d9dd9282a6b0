"""What shards make of what workers changed by steps of their own."""
