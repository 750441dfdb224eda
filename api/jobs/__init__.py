"""Jobs: their state, events and answers."""
