"""The papers' tables, one command each: `archipel reproduce NAME`.

records.py    what a reproduction is: studies, the paper's table, its claims, and the scales at which it can be run
papers/       one module for each table or figure, beside the study files that it runs
catalogue.py  their names
evidence.py   the finished runs that figures are taken from
measures.py   how a figure is taken from them
claims.py     what may be claimed of a table, and whether it holds
outcome.py    from a name and a scale to the paper's figures beside ours
curves.py     scores of all studies in one picture
document.py   docs/papers.md
"""
