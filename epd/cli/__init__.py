"""The ``epd`` command, and the supervisor that runs the whole stack on one machine."""
