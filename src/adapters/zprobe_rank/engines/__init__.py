"""The engines under test, one module each with a class `Engine` (see `base`)."""
