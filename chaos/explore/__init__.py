"""The explorer: every crash point of the update, with losses, in one process, on the real protocol code."""
