"""Downloads. The only code that faces the network on behalf of a request; it parses no media."""
