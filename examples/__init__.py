"""Examples for people who put epd before an engine of their own."""
