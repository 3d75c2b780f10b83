"""RADFed's tables and figures: Y. Xue, D. Klabjan and Y. Luo, Aggregation Delayed Federated Learning.

table3.py  nine methods on nine sets, cross-validated by learner
table1.py  what the sets are like: sizes of learners and C-scores
fig6_7.py  divergence from a centralised run, and between local models
"""

PAPER = "RADFed: Aggregation Delayed Federated Learning"
