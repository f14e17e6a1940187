"""Another /etc/hosts and no name server for one command in a lab's host, in a mount namespace that ends with it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def with_names(folder: Path, hosts: str, argv: Sequence[str]) -> list[str]:
    """``argv`` where names are those in ``hosts`` (lines of /etc/hosts), and the name server cannot be reached."""
    # An address of documentation (RFC 5737), to which a lab's host has no route, so a query fails at once.
    files = {"hosts": hosts, "resolv.conf": "nameserver 192.0.2.53\n", "nsswitch.conf": "hosts: files dns\n"}
    for name, text in files.items():
        (folder / name).write_text(text)
    mounts = " && ".join(f"mount --bind '{folder / name}' /etc/{name}" for name in files)
    return ["unshare", "--mount", "sh", "-c", f'{mounts} && exec "$@"', "sh", *argv]
