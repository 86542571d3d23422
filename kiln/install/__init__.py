"""Install packages into a prefix, explain failed solves, and test packages in clean prefixes."""
