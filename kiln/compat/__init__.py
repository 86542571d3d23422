"""The doctor: tables of versions and machines, and the rules that judge combinations by them."""
