"""gpumon watching a real llama.cpp on this machine's CPU, through ``gpumon proxy``, while real faults are done to it.

Run it with ``pytest tests/live``: three minutes, best alone (x86-64 Linux, two CPUs, ``pip install .[dev]``).
``pytest tests/live -s`` prints what the faults did, how late tokens were, what gpumon blamed, and how far its times are
from the client's. Root adds the one fault that needs a writable cgroup, the CPU quota, and a larger weight against
other load.
"""
