"""One module for each table or figure of a paper, beside the study files that it runs."""
