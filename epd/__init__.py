"""epd: the encoder tier of Encoder-Prefill-Decode serving. Shared vocabulary of every process."""
