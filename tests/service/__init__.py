"""The service on a fake of what runs jobs, with real databases and real logs."""
