"""What Decode spends on a handoff, beside what it would spend on the media itself."""
