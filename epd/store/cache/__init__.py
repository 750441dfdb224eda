"""The embedding cache: index entries, lookups of recent items, and moves between the tiers."""
