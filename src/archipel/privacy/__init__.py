"""The basis of differential privacy, independent of the rest of Archipel: secret noise and its accounting."""
