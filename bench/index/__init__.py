"""What a million index entries cost a server, and whether eviction stays cheap with them."""
