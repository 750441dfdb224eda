"""What a CUDA device does with the encoders, against its own limits; and its twins on a CPU, for tests."""
