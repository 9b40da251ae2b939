//! Seeds that once failed, by what was wrong.
