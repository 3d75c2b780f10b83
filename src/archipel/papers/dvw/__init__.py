"""Metis / DVW.

D. Stripelis and J. L. Ambite, Accelerating Federated Learning in Heterogeneous Data and Computational Environments.

`homogeneous.toml` and `heterogeneous.toml` are the two clusters of Table I (CIFAR-10), which Figure 9 counts too;
`fashion.toml` is the first of them with Fashion-MNIST, and `centralised.toml` the search for the learning rate;
`cifar100.toml` and `emnist.toml` are Tables II and III, and Figures 5 to 8 are the curves of all these.
`frequency.toml` has the update frequencies of section VI. Figures 3 and 4 look at validation cycles. Figure 2 needs no
study: it times the controller's arithmetic.
"""

from __future__ import annotations

from pathlib import Path

PAPER = "Metis / DVW: Accelerating Federated Learning in Heterogeneous Data and Computational Environments"
FOLDER = Path(__file__).parent

CLUSTER = (
    "The paper measures seconds on its machines and gives no speeds. Here a fast learner takes 0.2 virtual seconds for "
    "a training step and 0.04 for an evaluation step, a slow one ten times as long, and transfers take none; learners "
    "are fast and slow in turn by falling data size (section VI). At 0.2 seconds 200 rounds on uniform data take "
    "8,000, which fits Table I, where FedAvg has the same accuracy after 10,000 seconds and after 200 rounds.",
    'FedAsync\'s "mixing hyperparameter a = 0.5" is read as the exponent of its polynomial, which the cited paper '
    "calls a; the mixing coefficient alpha is 0.6, Archipel's default.",
    "Validation cycles: VC_loss 0 and VC_tomb 4 for fast learners, 1 and 1 for slow ones, the values of Figure 3, "
    "where no remark says otherwise; those that the grid search found are not given. A cycle ends after 50 epochs "
    "at the latest.",
)
"""Readings that all tables share."""
