"""What Decode spends on a handoff, against what it would spend on the media itself."""
