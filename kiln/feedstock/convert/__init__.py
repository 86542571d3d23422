"""The conversion of meta.yaml into recipe.yaml, with its proof."""
