"""The papers' tables, one command each: `archipel reproduce NAME`.

reproduction.py     what a reproduction is: studies, the paper's table, and what the paper claims of it
studies.py          the studies of a reproduction, and the scales at which they are run
dnc/ dvw/ …         one module for each table or figure, beside the study files that it runs
catalogue.py        their names
finished_runs.py    the finished runs that figures are computed from
figure_measures.py  how a figure is computed from them
claims.py           the claims that can be made of a table, and whether they hold
outcome.py          from a name and a scale to the paper's figures beside ours
kept_scores.py      the scores of all runs, for other ways of scoring
store.py            an outcome beside the documents
study_curves.py     scores of all studies in one picture
document.py         the pages of docs/papers
"""
