//! The real binary, as a person or a script runs it.

mod demo;
mod help;
mod run;
mod secrets;
mod serve;
mod verbs;
