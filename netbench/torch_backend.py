"""``parallel_gloo`` as a backend of torch.distributed: importing this module registers it.

    import netbench.torch_backend
    torch.distributed.init_process_group("parallel_gloo")

Options come from the environment (``ParallelOptions.from_environment``) or, over it, from ``pg_options``, which takes
a ``ParallelOptions``. docs/parallel.md says what torch lets such a group do.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from torch import distributed as dist

from netbench.errors import UsageError
from netbench.process_group import ParallelOptions, ParallelProcessGroup

NAME = "parallel_gloo"


def create(settings: Any, options: ParallelOptions | None) -> ParallelProcessGroup:
    """What torch calls to open a group: ``settings`` has the store, the rank in the group, its size and timeout.

    Raises UsageError when ``options`` is not a ParallelOptions, and what ``ParallelProcessGroup.configure`` raises.
    """
    if options is None:
        options = ParallelOptions.from_environment()
    elif not isinstance(options, ParallelOptions):
        raise UsageError(
            f"pg_options: {type(options).__name__} is not for {NAME}; pass netbench.process_group.ParallelOptions"
        )
    group = ParallelProcessGroup(options=replace(options, timeout=settings.timeout))
    group.configure(settings.store, settings.group_rank, settings.group_size)
    group.lend_to_cpp()
    return group


def register() -> None:
    """Makes the name known to torch.distributed; harmless when it is already."""
    if os.environ.get("TORCH_DISTRIBUTED_USE_TORCHCOMMS", "0") not in ("", "0"):
        raise UsageError(f"TORCH_DISTRIBUTED_USE_TORCHCOMMS is set, and torch then never asks for {NAME}: unset it")
    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu"])


register()
