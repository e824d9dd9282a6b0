"""Sums of which less than all travels; what is left out is kept for the next one."""
