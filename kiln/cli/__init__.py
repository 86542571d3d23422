"""The command line. Only this package reads environment variables and prints."""
