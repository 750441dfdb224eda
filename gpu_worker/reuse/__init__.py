"""Rows that an earlier item gave: found by their content, read from its file, joined with new ones."""
