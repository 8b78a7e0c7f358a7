"""Spellings that tables and claims share."""

from __future__ import annotations


def theta_text(theta: float) -> str:
    """A RoPE base as figures name it: ``θ=1e4``, ``θ=5e5``; with all its digits where it is no such round number."""
    short = f"{theta:.0e}"
    return f"θ={short.replace('e+0', 'e') if float(short) == theta else f'{theta:g}'}"
