"""What more workers would bring a job, before it runs."""
