"""Fed2A's table: S. Liu, Q. Chen and L. You, Fed2A: Federated Learning Mechanism in Asynchronous and Adaptive Modes.

table4.py    all strategies on three data sets, and a map of the fleets and buffers under which the claim holds
cost.py      formula 12: gigabytes to the target
"""

PAPER = "Fed2A: Federated Learning Mechanism in Asynchronous and Adaptive Modes"
