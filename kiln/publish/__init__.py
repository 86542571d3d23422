"""From finished runs to a channel."""
