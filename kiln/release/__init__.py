"""Release the packages of runs: candidates, attestations, bundles, rebuilds."""
