"""The live page: a small web server that follows records on disk. It imports the standard library only."""
