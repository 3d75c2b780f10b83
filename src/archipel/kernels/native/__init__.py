"""Kernels in C for which torch has no operation, compiled at install if there is a compiler.

Every function has a counterpart in torch, which defines what it computes and is used where the library is absent.
"""
