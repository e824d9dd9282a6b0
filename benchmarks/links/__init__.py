"""Workers on several nodes with slow links between them, against DDP on gloo over the same links."""
