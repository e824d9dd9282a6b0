"""Tells whether a file would lie on a network file system, where SQLite cannot work.

SQLite's write-ahead log needs memory that all its processes share and locks that hold; network file systems have
neither, or not always: https://sqlite.org/wal.html, https://sqlite.org/faq.html#q5.
"""

from pathlib import Path

import psutil

NETWORK = frozenset({
    "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "orangefs",
    "pvfs2", "smb2", "smb3", "smbfs", "wekafs",
    # By programs of users, named `fuse.` and this:
    "blobfuse", "blobfuse2", "cephfs", "gcsfuse", "goofys", "juicefs", "mfs", "mount-s3", "rclone", "s3fs", "seaweedfs",
    "smbnetfs", "sshfs",
})  # fmt: skip
"""Types of file systems whose files lie on other machines, as the system names them."""


def network_disk(path: Path) -> str | None:
    """What a file would lie on, as `nfs4, mounted at /mnt`; none for a disk of this machine."""
    there = path.expanduser().absolute().resolve()
    found = None
    for mount in psutil.disk_partitions(all=True):
        # Of several one over the other, the last is seen.
        is_nearer = found is None or len(mount.mountpoint) >= len(found.mountpoint)
        if is_nearer and there.is_relative_to(mount.mountpoint):
            found = mount
    if found is None or found.fstype.removeprefix("fuse.") not in NETWORK:
        return None
    return f"{found.fstype}, mounted at {found.mountpoint}"
