"""Image and video encoders of the Qwen-VL families."""
