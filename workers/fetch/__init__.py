"""Downloads: what faces the network. Parses nothing."""
