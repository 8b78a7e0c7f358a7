"""Reproduction of "Modern Transformers Are Implicit Hybrids" (arXiv 2609.02986): library behind the workflow."""
