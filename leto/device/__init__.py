"""Memory domains and their kernels behind one Protocol; ``host`` is the embedded default."""
