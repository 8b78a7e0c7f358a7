"""Hugging Face config, model, cache and head-group modules."""
