"""gpumon tells you why a token was slow."""

__version__ = "0.1.0"
