//! Integration tests of eglu; the tests live in `tests/tests`.
