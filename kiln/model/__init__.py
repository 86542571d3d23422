"""The types that the stages exchange: frozen, keyword-only, standard library only."""
