"""The front doors: real HTTP on a free loopback port, real processes."""
