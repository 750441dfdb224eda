"""What packing gains and what the engine costs on top of a forward, both measured inside one run."""
