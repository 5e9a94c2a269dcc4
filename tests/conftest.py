"""What all tests share: hypothesis takes its time, and draws the same examples in every run."""

from hypothesis import settings

settings.register_profile("house", deadline=None, derandomize=True)
settings.load_profile("house")
