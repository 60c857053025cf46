"""Settings for every test."""

from hypothesis import settings

# No deadline: this machine is shared, and a slow moment is not a failure.
settings.register_profile("tierserve", deadline=None)
settings.load_profile("tierserve")
