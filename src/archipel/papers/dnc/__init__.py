"""D&C's tables and figures: P. Chandran et al., Divide-and-Conquer Federated Learning under Data Heterogeneity, 2021.

table1.py  two collaborators with five classes each, one mostly grey, one mostly in colour
fig4_6.py  where the net is divided, by divergence and by a sweep over all splits; epochs of fine-tuning; bytes
fig7.py    divergence by layer under class imbalance; one class at each collaborator
table2.py  five and ten collaborators with other shares of every class
table3.py  roles of Shakespeare's plays
"""

PAPER = "D&C: Divide-and-Conquer Federated Learning under Data Heterogeneity"
