"""Capture of q and k, RFIS, RPD and the behaviour scores."""
