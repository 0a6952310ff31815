"""Systems under test; the only room of the bench (with faults) that imports leto beyond core."""
