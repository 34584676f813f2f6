"""The engines under test, a package each: `script` has the function `train`, and `eyes` the class `Eyes`."""
