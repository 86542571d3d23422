"""The two recipe languages, the variants, and the rendering of both into one type."""
