"""`python -m archipel.live`: the page's process, started by `PageProcess`."""

from archipel.live.page_process import serve_from_pipe

serve_from_pipe()
