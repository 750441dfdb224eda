"""The peers' servers. They run in the peers' own environments, and import only what is installed there."""
