"""The command line: a signature and one library call a command."""
