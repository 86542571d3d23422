"""Fresh machines: containers of Debian with git, Python and certificates, where the project sets itself up."""
