//! Calling the command.

use std::{path::PathBuf, process::Command};

/// What a call left behind.
#[derive(Debug)]
pub struct Outcome {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Outcome {
    /// The outcome, which must be success.
    #[track_caller]
    pub fn success(self) -> Outcome {
        assert_eq!(self.code, 0, "{self:?}");
        self
    }

    /// The outcome, which must be an error for the user: this exit code, a message with each of `parts`, and no panic.
    #[track_caller]
    pub fn error(self, code: i32, parts: &[&str]) -> Outcome {
        assert_eq!(self.code, code, "{self:?}");
        assert!(!self.stderr.contains("panicked"), "{self:?}");
        for part in parts {
            assert!(self.stderr.contains(part), "`{part}` is not in: {}", self.stderr);
        }
        self
    }
}

/// Calls `eglu` with these arguments.
pub fn eglu<A: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = A>) -> Outcome {
    let output = Command::new(env!("CARGO_BIN_EXE_eglu")).args(args).output().expect("the command starts");
    Outcome {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// A file of `fixtures/`.
pub fn fixture(name: &str) -> String {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "fixtures", name].iter().collect();
    path.to_string_lossy().into_owned()
}

/// True where NVRTC is there. Without it tests that need it skip, unless `EGLU_REQUIRE_NVRTC=1` makes that a failure.
pub fn has_nvrtc() -> bool {
    use eglu::runtime::cuda::{Finding, probe};
    match probe().nvrtc {
        Finding::Found(_) => true,
        Finding::Missing(why) => {
            assert!(std::env::var_os("EGLU_REQUIRE_NVRTC").is_none_or(|value| value != "1"), "NVRTC is required, but {why}");
            eprintln!("skipped: {why}");
            false
        }
    }
}
