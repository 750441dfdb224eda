"""Preprocessing on the device: raw pixels and PCM to model inputs."""
