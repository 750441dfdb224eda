"""What an image, an audio file or a video costs in front of the encoder, and what load the tier takes."""
