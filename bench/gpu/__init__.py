"""What a CUDA device does with the encoders: replays, preprocessing, overlap, memory, and its own limit."""
