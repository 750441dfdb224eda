"""A whole stack on one machine: its processes, how they start, and how they are supervised."""
