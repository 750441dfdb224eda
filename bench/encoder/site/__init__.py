"""A running stack with a real or a simulated device, the media that it fetches, and what it costs."""
