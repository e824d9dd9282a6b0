"""The report of a sweep that varies no batch: its best settings, and which axes matter."""
