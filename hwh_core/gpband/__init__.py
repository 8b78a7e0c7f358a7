"""Prediction, extraction and use of the Global Positional Band."""
