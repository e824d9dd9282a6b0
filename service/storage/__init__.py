"""Copies of runs in storage: any place that fsspec has a URL for, such as a folder, an S3 bucket, memory.

A run lives in its run directory, a plain folder with atomic renames; storage has a copy of it and nothing waits for
that. A copy is a set of objects named by the SHA-256 of what is in them, and a numbered manifest that says which object
is which file, with size and digest: `JOB/objects/SHA256` and `JOB/manifests/NUMBER.json`. Objects never change and the
manifest comes last, so the newest manifest that can be read is always a whole run, whatever was killed in between; what
it does not name is removed after it is there. The log is cut at ends of lines into segments of about a MiB, of which
only the last is sent again when it has grown. One thread of the service compares the run directories with what they
noted of their copies and sends the difference: it needs no queue that could overflow or be lost, only the names of runs
to look at. What a run removes leaves its copy by the same comparison. The other way there is one rule: a run directory
that is gone is brought back whole, every object checked against the manifest, and appears by one rename before anybody
reads it; so resuming, forking and downloads know nothing of storage. Names from storage are never used as paths before
they match the few patterns that a run directory has.
"""
