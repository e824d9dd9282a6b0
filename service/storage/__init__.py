"""Run directories, and their copies in storage: any place that fsspec has a URL for, such as a folder or an S3 bucket.

A run works in its run directory, a plain folder with atomic renames. Storage has a copy of it, and nothing waits for
that. A copy is a set of objects named by the SHA-256 of their content, and a numbered manifest that says which object
is which file, with size and digest: `JOB/objects/SHA256` and `JOB/manifests/NUMBER.json`. Objects never change and the
manifest is written last, so the newest readable manifest always describes a complete run, whatever was killed in
between. What it does not name is removed afterwards. The log is cut at line ends into segments of about a MiB, of which
only the last one is sent again when it has grown.

One thread of the service compares each run directory with a note about its copy, and sends the difference. It needs no
queue that could overflow or be lost, only the names of runs to look at. A file that the run has removed leaves the copy
by the same comparison.

Restoring follows one rule: a run directory that is gone is restored completely, each object checked against the
manifest, and appears by one rename before anybody reads it. So resuming, forking and downloads know nothing of storage.
Names from storage are never used as paths unless they match the few patterns that a run directory has.
"""
