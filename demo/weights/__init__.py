"""Converters from the weights inside two registry packages to folders in transformers' own layout."""
