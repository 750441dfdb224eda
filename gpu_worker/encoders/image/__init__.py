"""Image encoders: CLIP, SigLIP, DINOv2."""
