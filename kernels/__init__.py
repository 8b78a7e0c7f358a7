"""Kernels and their torch references, installed as ``hwh_kernels``."""
