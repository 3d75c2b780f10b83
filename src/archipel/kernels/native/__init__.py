"""Arithmetic in C, for what torch has no operation for: compiled when the package is installed, if there is a compiler.

Each of its functions has a twin in torch, which is used where the library is not there and says what it has to
compute.
"""
