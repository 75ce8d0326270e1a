"""Public addresses of the project. This is the only place where they are set, and there are none yet.

While they are empty, nothing points to a host that somebody else might own: errors name a file of the source
distribution, and packages have no project URLs.
"""

REPOSITORY = ""
"""Address of the repository, such as ``https://example.org/owner/intact8``."""

SITE = ""
"""Address of the documentation, with a slash at its end."""
