"""Metis / DVW: D. Stripelis and J. L. Ambite, Accelerating Federated Learning in Heterogeneous Data and Computational
Environments.

`homogeneous.toml` and `heterogeneous.toml` are the two clusters of Table I (CIFAR-10), which Figure 9 counts too;
`cifar100.toml` and `emnist.toml` are Tables II and III. Figure 2 needs no study: it times the controller's arithmetic.
"""

from __future__ import annotations

from pathlib import Path

PAPER = "Metis / DVW"
FOLDER = Path(__file__).parent
