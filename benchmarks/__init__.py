"""Archipel against its peers and against the machine, on the same work in one run."""
