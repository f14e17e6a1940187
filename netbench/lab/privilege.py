"""The way to a network of one's own: as root, or through a user namespace; or a message that says what is missing."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Literal

from netbench.errors import LaunchError
from netbench.lab import namespaces

Way = Literal["root", "user namespace"]

#: Bits of the capability sets in /proc/self/status, from linux/capability.h.
_CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21, "CAP_SETFCAP": 31}


#: Settings that can close the way; read as sysctl does.
_SETTINGS = (
    "kernel.apparmor_restrict_unprivileged_userns",
    "kernel.unprivileged_userns_clone",
    "user.max_net_namespaces",
    "user.max_user_namespaces",
)


class Machine:
    """What the kernel grants this process at first; a test puts another in its place.

    All is read at once: inside a new user namespace, even one that turns out to be of no use, every process has all
    capabilities and the settings are others.
    """

    def __init__(self) -> None:
        lines = Path("/proc/self/status").read_text().splitlines()
        self._status = dict(line.split(":", 1) for line in lines)
        self._settings = {name: _read_setting(name) for name in _SETTINGS}
        self._user, self._group = os.geteuid(), os.getegid()

    def holds(self, capability: str) -> bool:
        return bool(int(self._status["CapEff"], 16) >> _CAPABILITIES[capability] & 1)

    def is_root(self) -> bool:
        return self._user == 0

    def filtered(self) -> bool:
        """Whether system calls pass a seccomp filter, as in most containers."""
        return self._status.get("Seccomp", "0").strip() == "2"

    def setting(self, name: str) -> str | None:
        """None where this kernel has no such setting."""
        return self._settings[name]

    def unshare(self, kinds: int) -> None:
        namespaces.unshare(kinds)
        if kinds & namespaces.USER:
            namespaces.become_root_inside(self._user, self._group)


def _read_setting(name: str) -> str | None:
    try:
        return Path("/proc/sys", *name.split(".")).read_text().strip()
    except OSError:
        return None


def take_network(machine: Machine) -> Way:
    """Moves this process, which must have one thread, into an empty network of its own.

    Raises LaunchError, naming the capability or setting that is missing and how to get it.
    """
    missing = [name for name in ("CAP_SYS_ADMIN", "CAP_NET_ADMIN") if not machine.holds(name)]
    way: Way = "user namespace" if missing else "root"
    try:
        machine.unshare(namespaces.NETWORK | (namespaces.USER if missing else 0))
    except OSError as error:
        raise LaunchError(_refusal(error, missing, machine)) from None
    return way


def _refusal(error: OSError, missing: list[str], machine: Machine) -> str:
    cause, remedy = _cause(error, machine, bool(missing))
    if not missing:
        return f"a lab needs network namespaces, and the kernel refuses them even to root: {cause}; {remedy}"
    return (
        f"a lab needs network namespaces: this process has no {' and no '.join(missing)}, and the way without them, "
        f"a user namespace, is refused: {cause}; {remedy}, or run netbench with these capabilities "
        "(with sudo; in a container: --cap-add SYS_ADMIN --cap-add NET_ADMIN)"
    )


def _cause(error: OSError, machine: Machine, through_user_namespace: bool) -> tuple[str, str]:
    """What refused, and the remedy."""
    if machine.setting("user.max_net_namespaces") == "0":
        return _setting("user.max_net_namespaces", "0", "1024")
    if through_user_namespace:
        if machine.setting("user.max_user_namespaces") == "0":
            return _setting("user.max_user_namespaces", "0", "1024")
        if machine.setting("kernel.unprivileged_userns_clone") == "0":
            return _setting("kernel.unprivileged_userns_clone", "0", "1")
        if machine.setting("kernel.apparmor_restrict_unprivileged_userns") == "1":
            return _setting("kernel.apparmor_restrict_unprivileged_userns", "1", "0")
        if machine.is_root() and not machine.holds("CAP_SETFCAP"):
            # Since Linux 5.12 only this lets root be root of a user namespace, too.
            return "root may make one only with CAP_SETFCAP", "run netbench as another user"
        if machine.setting("user.max_user_namespaces") is None:
            return "this kernel has no user namespaces (CONFIG_USER_NS)", "use a kernel that has them"
    if error.errno == errno.ENOSPC:
        return (
            "all namespaces that user.max_user_namespaces and user.max_net_namespaces allow are in use",
            "end some, or raise the settings with sysctl",
        )
    if machine.filtered():
        return (
            f"{error.strerror}, by the seccomp filter of this container",
            "start the container with the option --security-opt seccomp=unconfined",
        )
    return f"{error.strerror} (no CONFIG_NET_NS, or a security module such as SELinux)", "see the kernel's log"


def _setting(name: str, value: str, better: str) -> tuple[str, str]:
    return f"the setting {name} is {value}", f"allow it with 'sudo sysctl -w {name}={better}'"
