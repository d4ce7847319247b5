//! Tests of the `eglu` command as a user meets it: arguments in; exit code, text and files out.

mod archive;
mod bad_input;
mod bench;
mod browser;
mod cache;
mod call;
mod emit;
mod golden;
mod gradients;
mod kernels;
mod odd;
mod optimize;
mod package;
mod page;
mod refusals;
mod run;
mod trace;
mod usage;
