"""gpumon watching a real llama.cpp on this machine's CPU while real faults are done to it.

Run it with ``pytest tests/live`` (about two minutes, two CPUs; x86-64 Linux and ``pip install .[dev]``).
``pytest tests/live -s`` prints what the faults did, what gpumon read, and what it blamed.
Root adds the fault that needs a writable cgroup, the CPU quota; nothing else needs a privilege.
"""
