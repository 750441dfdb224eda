"""Encoder families behind one protocol: image, Qwen-VL and speech."""
