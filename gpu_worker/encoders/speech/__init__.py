"""Audio encoders: Whisper, Qwen2-Audio, Qwen2.5-Omni."""
