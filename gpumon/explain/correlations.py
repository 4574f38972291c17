"""PLACEHOLDER, to be replaced as a whole by its owner."""
class Correlations:
    def __init__(self, dimensions, latencies): pass
    def step(self, at_s): pass
    def samples(self): return []
