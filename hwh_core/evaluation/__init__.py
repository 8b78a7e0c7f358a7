"""lm-eval model, task rows, needle-in-a-haystack grid."""
