"""Hosts with a known link, on one machine: each in a network namespace, around a switch.

Everything here is cheap to import; pyroute2 is loaded only by the process that holds a lab.
"""

from netbench.lab.host import HostAddress
from netbench.lab.lab import Capability, Lab, capability, down, exec_in, list_labs, up
from netbench.lab.roster import LabEntry
from netbench.lab.spec import LabSpec

__all__ = [
    "Capability",
    "HostAddress",
    "Lab",
    "LabEntry",
    "LabSpec",
    "capability",
    "down",
    "exec_in",
    "list_labs",
    "up",
]
