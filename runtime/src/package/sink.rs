//! Where a package's bytes go: a file, until writing fails.
//!
//! `ZipWriter` finishes the archive when it is dropped, and tells stderr where that fails. So a failure is kept here for who asks at the end,
//! and what comes after it goes nowhere.

use std::{
    cell::RefCell,
    fs::File,
    io::{self, BufWriter, Seek, SeekFrom, Write},
};

/// Writes to a file; succeeds always.
pub(super) struct Sink<'a> {
    file: BufWriter<&'a File>,
    failure: &'a RefCell<Option<io::Error>>,
    at: u64,
    end: u64,
}

impl<'a> Sink<'a> {
    /// A sink at the start of an empty file; `failure` is set where writing fails.
    pub(super) fn new(file: &'a File, failure: &'a RefCell<Option<io::Error>>) -> Sink<'a> {
        Sink { file: BufWriter::new(file), failure, at: 0, end: 0 }
    }

    fn attempt(&mut self, act: impl FnOnce(&mut BufWriter<&'a File>) -> io::Result<()>) {
        let mut failure = self.failure.borrow_mut();
        if failure.is_none() {
            *failure = act(&mut self.file).err();
        }
    }
}

impl Write for Sink<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.attempt(|file| file.write_all(bytes));
        self.at += bytes.len() as u64;
        self.end = self.end.max(self.at);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.attempt(|file| file.flush());
        Ok(())
    }
}

impl Seek for Sink<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let from = |start: u64, by: i64| start.checked_add_signed(by).ok_or(io::ErrorKind::InvalidInput);
        self.at = match to {
            SeekFrom::Start(at) => at,
            SeekFrom::Current(by) => from(self.at, by)?,
            SeekFrom::End(by) => from(self.end, by)?,
        };
        let at = self.at;
        self.attempt(|file| file.seek(SeekFrom::Start(at)).map(drop));
        Ok(self.at)
    }
}

impl Drop for Sink<'_> {
    fn drop(&mut self) {
        self.attempt(|file| file.flush());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_kept_and_what_follows_is_let_go() {
        let file = tempfile::NamedTempFile::new().unwrap();
        // Open for reading alone: the first flush fails.
        let (read_only, failure) = (File::open(file.path()).unwrap(), RefCell::new(None));
        let mut zip = zip::ZipWriter::new(Sink::new(&read_only, &failure));
        for name in ["one", "two"] {
            zip.start_file(name, zip::write::SimpleFileOptions::default()).unwrap();
            zip.write_all(&vec![7; 100_000]).unwrap();
        }
        drop(zip.finish().unwrap());
        assert!(failure.into_inner().is_some());
    }
}
