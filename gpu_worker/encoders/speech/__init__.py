"""Audio encoders: Whisper and the Qwen audio towers."""
