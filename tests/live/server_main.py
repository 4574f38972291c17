"""llama.cpp's server as a program of its own: ``python -m tests.live.server_main WEIGHTS THREADS``.

Prints one line of JSON with its URL and its pid when it serves, and ends when its standard input does. Its command name
is ``llama-server``, as that of the released program, by which gpumon is told to watch it.

The weights stay in the mapped file: no lock, and no copy of them in another layout (``no_extra_bufts``), which would be
memory that no fault of the file reaches. Like llama.cpp does on hosts with several NUMA nodes, it tells the kernel not
to read ahead in the mapping (MADV_RANDOM). Otherwise how many major faults a missing page makes is up to the disk: with
8 MB of read-ahead one fault fetches 2,000 pages, and the waits for the others count as minor.

A line ``START LENGTH`` on standard input makes it page out that stretch of its own memory: for users to whom the kernel
forbids to do that from outside.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from importlib import import_module
from pathlib import Path

from tests.live.maps import mappings

_MADV_RANDOM = 1
_MADV_PAGEOUT = 21
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_SIGKILL = 9
COMM = "llama-server"


def main(weights: str, threads: int) -> None:
    """Serve until standard input ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    # Whoever started it may be killed: then nothing must be left behind that maps the weights.
    libc.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
    libc.prctl(_PR_SET_NAME, ctypes.c_char_p(COMM.encode()), 0, 0, 0)
    llama = import_module("xllamacpp")  # it has no type stubs
    params = llama.CommonParams()
    params.model.path = weights
    params.load_mode = llama.llama_load_mode.LLAMA_LOAD_MODE_MMAP
    params.no_extra_bufts = True
    params.fit_params = False
    params.n_ctx = 2048
    params.n_parallel = 1
    params.cache_ram_mib = 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.cpuparams.poll = params.cpuparams_batch.poll = 0
    params.n_threads_http = 2
    params.endpoint_metrics = True
    params.endpoint_slots = True
    params.ui = False
    params.port = 0
    server = llama.Server(params)
    madvise = libc.madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for start, end in mappings(os.getpid(), Path(weights)):
        assert madvise(start, end - start, _MADV_RANDOM) == 0, os.strerror(ctypes.get_errno())
    print(json.dumps({"url": server.listening_address, "pid": os.getpid()}), flush=True)
    for line in sys.stdin:
        begin, length = map(int, line.split())
        madvise(begin, length, _MADV_PAGEOUT)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
