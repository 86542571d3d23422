"""The images that kiln makes: base images for builds, slim images of packages, and images of fleet workers."""
