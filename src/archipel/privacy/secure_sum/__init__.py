"""Secure sums: the controller learns the sum of a cohort's numbers and nothing else.

K. Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning, 2017; J. Bell et al., Secure
Single-Server Aggregation with (Poly)Logarithmic Overhead, 2020. Both sides are state machines without IO.
"""
