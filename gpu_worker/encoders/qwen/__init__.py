"""The vision towers of the Qwen-VL family."""
