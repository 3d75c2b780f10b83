"""Simulations on a Ray cluster: clock, controller and records stay in the driver, learners are trained on nodes."""
