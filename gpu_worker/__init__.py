"""The GPU worker: the only package of the product that may import torch."""
