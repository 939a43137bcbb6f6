"""Measurements beyond accuracy: gradients, density ratios, test views."""
