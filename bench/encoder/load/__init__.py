"""Load at planned rates, sweeps to the knee, and the servers that epd is compared with."""
