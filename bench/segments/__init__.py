"""What cached segments of audio save, through a whole stack."""
