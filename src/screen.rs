//! Text for stdout.

use std::io::Write;

/// Prints `text` as it is; ends quietly where the reader has gone (`eglu … | head`).
pub fn show(text: &str) {
    let mut stdout = std::io::stdout().lock();
    if stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).is_err() {
        std::process::exit(0);
    }
}
