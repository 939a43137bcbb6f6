"""Federated learning under heterogeneity: the small package behind the notebooks."""
