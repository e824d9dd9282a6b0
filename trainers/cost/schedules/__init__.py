"""How long a step takes, in closed forms over arrays of candidates: one file for each kind of schedule.

Time of a message: latency + bytes / bandwidth (Hockney 1994). Of what overlaps, the longest counts. An exchange among
workers on several switches goes at the pace of the slowest link on its way.
"""
