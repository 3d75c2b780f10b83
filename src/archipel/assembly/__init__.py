"""What the simulation and the federation build alike from an algorithm, data and a model."""
