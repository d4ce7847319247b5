//! What a person who waits sees on stderr: what is being done, and how far it is. Nothing where stderr is no terminal.

use eglu_runtime::Phases;
use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;

/// Parts of a bar that follows a share.
const PARTS: u64 = 1000;

/// One line that goes when this is dropped.
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A line that is empty until something is told.
    pub fn new() -> Progress {
        // Indicatif draws on stderr, and nothing where that is no terminal.
        let bar = ProgressBar::new_spinner().with_style(spinner());
        if !bar.is_hidden() {
            bar.enable_steady_tick(Duration::from_millis(100));
        }
        Progress { bar }
    }

    /// Phases that this line shows.
    pub fn phases(&self) -> Phases {
        let bar = self.bar.clone();
        Phases::watched(move |progress| {
            if progress.done == 0 {
                bar.set_style(spinner());
            }
            if progress.done <= 1 && progress.total > 0 {
                bar.set_style(counter());
                bar.set_length(progress.total as u64);
            }
            bar.set_position(progress.done as u64);
            bar.set_message(progress.name.to_owned());
        })
    }

    /// Shows the share done of some work, from 0 to 1.
    pub fn share(&self, what: &str, share: f64) {
        if self.bar.length() != Some(PARTS) {
            self.bar.set_style(shares());
            self.bar.set_length(PARTS);
        }
        self.bar.set_message(what.to_owned());
        self.bar.set_position((share * PARTS as f64) as u64);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

fn spinner() -> ProgressStyle {
    style("{spinner} {msg} {elapsed}")
}

fn counter() -> ProgressStyle {
    style("{spinner} {msg} {wide_bar} {pos}/{len}")
}

fn shares() -> ProgressStyle {
    style("{spinner} {msg} {wide_bar} {percent} %")
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|error| unreachable!("a built-in template: {error}"))
}
