"""Which way a lab takes into the kernel, and what it says when there is none: on machines that are made up."""

from __future__ import annotations

import errno
import os

import pytest

from netbench.errors import LaunchError
from netbench.lab import namespaces
from netbench.lab.privilege import Machine, take_network

ALL = ("CAP_SYS_ADMIN", "CAP_NET_ADMIN", "CAP_SETFCAP")
OPEN = {"user.max_user_namespaces": "1000", "user.max_net_namespaces": "1000"}
NO_ROOT = "a lab needs network namespaces: this process has no CAP_SYS_ADMIN and no CAP_NET_ADMIN, "
REFUSED = NO_ROOT + "and the way without them, a user namespace, is refused: "
WITH = ", or run netbench with these capabilities (with sudo; in a container: --cap-add SYS_ADMIN --cap-add NET_ADMIN)"


class MadeUp(Machine):
    """A machine with these capabilities and settings, on which unshare fails with ``number`` unless it is 0."""

    def __init__(
        self,
        capabilities: tuple[str, ...] = (),
        settings: dict[str, str] | None = None,
        number: int = 0,
        seccomp: bool = False,
        root: bool = False,
    ) -> None:
        self.capabilities = capabilities
        self.settings = OPEN | (settings or {})
        self.number = number
        self.seccomp = seccomp
        self.root = root
        self.unshared = 0

    def holds(self, capability: str) -> bool:
        return capability in self.capabilities

    def is_root(self) -> bool:
        return self.root

    def filtered(self) -> bool:
        return self.seccomp

    def setting(self, name: str) -> str | None:
        return self.settings.get(name)

    def unshare(self, kinds: int) -> None:
        if self.number:
            raise OSError(self.number, os.strerror(self.number))
        self.unshared = kinds


def refusal(machine: MadeUp) -> str:
    with pytest.raises(LaunchError) as caught:
        take_network(machine)
    return str(caught.value)


def test_root_takes_a_network_alone() -> None:
    machine = MadeUp(ALL, root=True)
    assert take_network(machine) == "root"
    assert machine.unshared == namespaces.NETWORK


@pytest.mark.parametrize("capabilities", [(), ("CAP_SYS_ADMIN",), ("CAP_NET_ADMIN",)])
def test_without_both_capabilities_it_goes_through_a_user_namespace(capabilities: tuple[str, ...]) -> None:
    machine = MadeUp(capabilities)
    assert take_network(machine) == "user namespace"
    assert machine.unshared == namespaces.NETWORK | namespaces.USER


@pytest.mark.parametrize(
    ("name", "value", "better"),
    [
        ("kernel.unprivileged_userns_clone", "0", "1"),
        ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
        ("user.max_user_namespaces", "0", "1024"),
        ("user.max_net_namespaces", "0", "1024"),
    ],
)
def test_a_setting_that_forbids_it_is_named_with_its_cure(name: str, value: str, better: str) -> None:
    message = refusal(MadeUp(settings={name: value}, number=errno.EPERM))
    assert message == f"{REFUSED}the setting {name} is {value}; allow it with 'sudo sysctl -w {name}={better}'{WITH}"


def test_a_container_without_the_right_is_named() -> None:
    assert refusal(MadeUp(number=errno.EPERM, seccomp=True)) == (
        f"{REFUSED}Operation not permitted, by the seccomp filter of this container; "
        f"start the container with the option --security-opt seccomp=unconfined{WITH}"
    )


def test_only_the_missing_capability_is_named() -> None:
    message = refusal(MadeUp(("CAP_SYS_ADMIN",), number=errno.EPERM, seccomp=True))
    assert "this process has no CAP_NET_ADMIN, and" in message


def test_a_kernel_without_user_namespaces_is_named() -> None:
    machine = MadeUp(number=errno.EINVAL)
    machine.settings = {}
    assert "this kernel has no user namespaces (CONFIG_USER_NS)" in refusal(machine)


def test_root_without_capabilities_is_told_why() -> None:
    assert "root may make one only with CAP_SETFCAP; run netbench as another user" in refusal(
        MadeUp(number=errno.EPERM, root=True)
    )


def test_too_many_namespaces_are_no_question_of_rights() -> None:
    assert refusal(MadeUp(ALL, number=errno.ENOSPC)) == (
        "a lab needs network namespaces, and the kernel refuses them even to root: all namespaces that "
        "user.max_user_namespaces and user.max_net_namespaces allow are in use; "
        "end some, or raise the settings with sysctl"
    )
