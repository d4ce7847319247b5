//! Text for stdout.

use crate::failure::Failure;
use std::io::{self, ErrorKind, Write};

/// Standard output, whose reader may leave early (`eglu … | head`): what it does not want is dropped, and the command goes on with its files.
pub struct Screen;

impl Write for Screen {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        heard(io::stdout().write_all(bytes)).map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        heard(io::stdout().flush())
    }
}

fn heard(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// Prints `text` as it is.
pub fn show(text: &str) -> Result<(), Failure> {
    let shown = Screen.write_all(text.as_bytes()).and_then(|()| Screen.flush());
    shown.map_err(|cause| Failure::data("cannot write to the standard output").because(cause))
}
