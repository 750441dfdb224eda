"""The ``epd`` command, one file per subcommand."""
