"""`python -m archipel.live`: the page's process, which its parent starts and speaks to."""

from archipel.live.page_process import serve_from_pipe

serve_from_pipe()
