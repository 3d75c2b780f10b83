"""Simulations on a Ray cluster: the driver keeps clock, controller and records; learners' jobs are computed on nodes."""
