"""The types that the stages hand to each other: frozen, keyword-only, standard library only."""
