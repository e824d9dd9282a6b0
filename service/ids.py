"""Ids of jobs, tokens and webhooks."""

import secrets
import time

DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"
EPOCH_S = 1_704_067_200  # the first second of 2024


def new_job_id() -> str:
    """Twelve characters that sort by time to the microsecond; fit for addresses, file names and names of actors."""
    number = (int((time.time() - EPOCH_S) * 1_000_000) << 10) | secrets.randbits(10)
    return "".join(DIGITS[(number >> shift) & 31] for shift in range(55, -1, -5))
