"""Times the step of a spec on this machine, alone and beside others, and the way between two workers."""
