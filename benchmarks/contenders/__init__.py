"""One file a contender: a program of its own, run by the Python of its own environment."""
