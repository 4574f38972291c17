"""PLACEHOLDER, to be replaced as a whole by its owner."""
class LatencyTracks:
    def add(self, group, records, scene): pass
