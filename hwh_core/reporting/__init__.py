"""Figures, tables and the claims ledger; imports pandas and matplotlib, never torch."""
