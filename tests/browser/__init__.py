"""A package, so that its browser ends with it: the browser's event loop runs in the thread of the tests."""
