"""Trainer, optimizer, schedule and checkpoints."""
