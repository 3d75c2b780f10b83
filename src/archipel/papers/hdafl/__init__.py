"""HDAFL: L. Yang, C. Beliard and D. Rossi, Heterogeneous Data-Aware Federated Learning.

`iid.toml`, `noniid.toml` and `disjoint.toml` are Table 3's three ways to deal FEMNIST out, the second Table 4's too;
`clothes.toml` is the third with Fashion-MNIST. `traffic.toml` is Table 5.
"""

PAPER = "HDAFL: Heterogeneous Data-Aware Federated Learning"
