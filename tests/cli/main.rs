//! The kubectl plugin, run as users run it.

mod compile;
mod errors;
mod suite;
mod support;
mod verdicts;
