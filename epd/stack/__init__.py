"""The processes of ``epd up``: which there are, how they start, and how they are watched."""
