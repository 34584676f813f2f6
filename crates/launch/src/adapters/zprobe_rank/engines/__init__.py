"""The engines under test. Each engine is a package: its module `script` has the function `train`, and its module
`eyes`, if there is one, has the class `Eyes`."""
