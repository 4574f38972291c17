"""gpumon watching a real llama.cpp on this machine's CPU while real faults are done to it.

Run it with ``pytest tests/live``: two minutes, best alone (x86-64 Linux, two CPUs, ``pip install .[dev]``).
``pytest tests/live -s`` prints what the faults did, how late tokens were, and what gpumon blamed.
Root adds the one fault that needs a writable cgroup, the CPU quota, and a larger weight against other load.
"""
