"""Examples for people who connect epd to their own engine."""
