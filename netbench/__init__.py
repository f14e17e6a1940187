"""netbench: what torch.distributed really gets out of a network over TCP, and why."""

__version__ = "0.1.0"
