"""epd against other servers: litserve, mosec and infinity-emb, each in a virtual environment of its own."""
