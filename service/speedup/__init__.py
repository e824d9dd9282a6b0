"""What more workers bring to a job: the same job on several numbers of them, measured and predicted side by side."""
