"""Converts the weights inside two installed packages to model folders in the layout of transformers."""
