"""What tensors travel over: sockets, mapped files, rendezvous. Nothing here knows what they mean."""
