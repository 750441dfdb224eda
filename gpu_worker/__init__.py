"""The GPU worker: everything that may import torch."""
