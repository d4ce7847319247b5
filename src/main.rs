//! eglu command
fn main() {}
