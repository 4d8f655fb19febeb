"""Outputs that are not checkpoints: one tensor as `.npy`, the dot-product function."""
