"""One config's job: its options, its messages, its log."""
