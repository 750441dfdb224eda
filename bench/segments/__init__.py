"""What known segments of a sound save, through a whole stack."""
