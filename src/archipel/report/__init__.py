"""Reports: tables, figures and a page from finished runs."""
