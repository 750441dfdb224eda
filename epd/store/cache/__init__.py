"""The embedding cache: index entries, lookups, and moves between the tiers."""
