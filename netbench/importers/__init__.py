"""Outputs of other tools, read into runs that stand beside ours: one class a tool, each in a module of its own.

A tool's class turns the text of a file into quotes (see quotes), in exact units and with nothing added: what a file
does not hold is asked from the user (``Given``) or left unknown. What does not look as the tool writes it is refused
with its line, and so is what this package has no word for.
"""

from netbench.importers.files import TOOLS, import_file
from netbench.importers.tool import Findings, Given, Tool

__all__ = ["TOOLS", "Findings", "Given", "Tool", "import_file"]
