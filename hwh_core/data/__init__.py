"""Text sources, tokenizers, token stores and the loader."""
