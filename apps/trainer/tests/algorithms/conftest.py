"""Settings of this folder's tests."""

import hypothesis

# A busy machine is no failure.
hypothesis.settings.register_profile("no-deadline", deadline=None)
hypothesis.settings.load_profile("no-deadline")
