"""The servers that keep the index of their channels: anaconda.org, prefix.dev, quetz, Artifactory."""
