"""``python -m gpumon`` is ``gpumon``: what the container image and the systemd unit start."""

from __future__ import annotations

import sys

from gpumon.cli import main

if __name__ == "__main__":
    sys.exit(main())
