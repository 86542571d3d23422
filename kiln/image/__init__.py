"""Images that kiln makes: for builds, for workers, and slim ones of packages."""
