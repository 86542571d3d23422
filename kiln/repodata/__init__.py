"""The index of a channel in every form that today's clients request, and its changes.

The records are the library's (py-rattler reads them from a package); here they are combined. A package is added to a
channel of thousands without reading any of the others again.
"""
