"""What every benchmark measures with: processes, their memory and time, statistics, reports."""
