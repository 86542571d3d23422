"""The publish stage: put packages into a channel, all or none, and only those that are a release."""
