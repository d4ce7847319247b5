//! A headless browser, driven from its command line: the page's tree after its scripts ran, a picture of it, and what it complained of.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

/// Chromium in one of its builds.
pub struct Browser(PathBuf);

/// What a page came to.
pub struct Seen {
    /// Messages on the page's console.
    pub complaints: Vec<String>,
    /// The tree as HTML.
    pub dom: String,
    picture: Vec<u8>,
}

const NAMES: [&str; 5] = ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

impl Browser {
    /// The one that `EGLU_BROWSER` names, or one of `PATH`. Without one it is said that the test skips, or the test fails where
    /// `EGLU_REQUIRE_BROWSER=1` asks for that.
    pub fn find() -> Option<Browser> {
        let path = env::var_os("PATH").unwrap_or_default();
        let anywhere = || NAMES.iter().flat_map(|name| env::split_paths(&path).map(move |folder| folder.join(name)));
        let found = env::var_os("EGLU_BROWSER").map(PathBuf::from).or_else(|| anywhere().find(|file| file.is_file()));
        if found.is_none() {
            let why = format!("no browser (one of {}) is in PATH", NAMES.join(", "));
            assert!(env::var_os("EGLU_REQUIRE_BROWSER").is_none_or(|value| value != "1"), "a browser is required, but {why}");
            eprintln!("skipped: {why}");
        }
        found.map(Browser)
    }

    /// Opens a file.
    pub fn show(&self, file: &Path, theme: &str, (width, height): (u32, u32)) -> Seen {
        let folder = tempfile::tempdir().unwrap();
        let picture = folder.path().join("page.png");
        let run = |what: &str| {
            // Root, as in containers, has no sandbox; the pages are this test's own.
            let output = Command::new(&self.0)
                .args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr"])
                .args(["--virtual-time-budget=4000", &format!("--window-size={width},{height}")])
                .arg(format!("--user-data-dir={}", folder.path().join("profile").display()))
                .arg(format!("--blink-settings=preferredColorScheme={}", if theme == "dark" { 0 } else { 1 }))
                .arg(what)
                .arg(format!("file://{}", file.display()))
                .output()
                .expect("the browser starts");
            assert!(output.status.success(), "the browser ended with {}", output.status);
            (String::from_utf8_lossy(&output.stdout).into_owned(), String::from_utf8_lossy(&output.stderr).into_owned())
        };
        let (_, told) = run(&format!("--screenshot={}", picture.display()));
        let (dom, more) = run("--dump-dom");
        let complaints = told.lines().chain(more.lines()).filter(|line| line.contains("CONSOLE")).map(str::to_owned).collect();
        Seen { complaints, dom, picture: std::fs::read(&picture).expect("the browser took a picture") }
    }
}

impl Seen {
    /// Nothing may stand on the console: the page writes nothing there itself.
    #[track_caller]
    pub fn assert_clean(&self, page: &Path) {
        assert!(self.complaints.is_empty(), "{}: {:#?}", page.display(), self.complaints);
    }

    /// The picture must be more than one colour: PNG packs an empty page of any size into a few kilobytes.
    #[track_caller]
    pub fn assert_drawn(&self, what: &str) {
        assert!(self.picture.starts_with(b"\x89PNG"), "{what}");
        assert!(self.picture.len() > 20_000, "{what}: the picture has {} bytes", self.picture.len());
    }
}
