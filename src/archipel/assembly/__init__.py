"""What both the simulation and the federation build from an algorithm, data and a model."""
