//! The phases of long work: how long each took, and how far the present one is.
//!
//! Who starts the work gives a [`Phases`] along; what is slow times itself in it. Nothing is printed here.

use std::{
    fmt,
    sync::{Mutex, PoisonError},
    time::Instant,
};

/// One phase that is over.
#[derive(Clone, Debug, PartialEq)]
pub struct Phase {
    /// What was done, in a word or two.
    pub name: String,
    /// What came of it, for people; empty where there is nothing to tell.
    pub note: String,
    /// When it began.
    pub start: Instant,
    /// How long it took.
    pub seconds: f64,
}

/// How far a phase is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress<'a> {
    /// The phase.
    pub name: &'a str,
    /// Parts that are done.
    pub done: usize,
    /// All its parts; 0 where their number is not known.
    pub total: usize,
}

/// What a start took, from a model's file to its first result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Start {
    /// Seconds of waiting for the driver to start and for the device to open, which any program on that device waits for, however it makes
    /// its kernels; nothing in a process that has the device open.
    pub opening: f64,
    /// Seconds of everything else.
    pub rest: f64,
}

/// Phases that wait for the driver.
const OPENING: [&str; 3] = ["driver", "device", "context"];

impl Start {
    /// The sum of these phases.
    pub fn of(phases: &[Phase]) -> Start {
        let seconds = |opening: bool| -> f64 {
            phases.iter().filter(|phase| OPENING.contains(&phase.name.as_str()) == opening).map(|phase| phase.seconds).sum()
        };
        Start { opening: seconds(true), rest: seconds(false) }
    }

    /// Seconds in all.
    pub fn total(&self) -> f64 {
        self.opening + self.rest
    }
}

type Watch = Box<dyn Fn(Progress<'_>) + Send + Sync>;

/// Phases in the order in which they ended. Threads may share it.
#[derive(Default)]
pub struct Phases {
    over: Mutex<Vec<Phase>>,
    watch: Option<Watch>,
}

impl fmt::Debug for Phases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.list()).finish()
    }
}

impl Phases {
    /// Phases that tell `watch` when one begins and how far it is; it may be called from several threads at once.
    pub fn watched(watch: impl Fn(Progress<'_>) + Send + Sync + 'static) -> Phases {
        Phases { watch: Some(Box::new(watch)), ..Phases::default() }
    }

    /// Does a phase's work and records its time.
    pub fn time<T>(&self, name: &str, work: impl FnOnce() -> T) -> T {
        self.time_noting(name, || (work(), String::new()))
    }

    /// [`time`](Phases::time) of work that leaves a note.
    pub fn time_noting<T>(&self, name: &str, work: impl FnOnce() -> (T, String)) -> T {
        self.tell(name, 0, 0);
        let start = Instant::now();
        let (result, note) = work();
        self.record(name, note, start, start.elapsed().as_secs_f64());
        result
    }

    /// Adds a phase that was timed elsewhere.
    pub fn record(&self, name: &str, note: String, start: Instant, seconds: f64) {
        let phase = Phase { name: name.into(), note, start, seconds };
        self.over.lock().unwrap_or_else(PoisonError::into_inner).push(phase);
    }

    /// Tells how far the phase of that name is.
    pub fn tell(&self, name: &str, done: usize, total: usize) {
        if let Some(watch) = &self.watch {
            watch(Progress { name, done, total });
        }
    }

    /// The phases that are over so far.
    pub fn list(&self) -> Vec<Phase> {
        self.over.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn phases_are_listed_as_they_end_and_told_of_as_they_begin() {
        let told: Arc<Mutex<Vec<(String, usize, usize)>>> = Arc::default();
        let seen = told.clone();
        let phases = Phases::watched(move |p| seen.lock().unwrap().push((p.name.into(), p.done, p.total)));
        let value = phases.time("outer", || {
            phases.time_noting("inner", || {
                phases.tell("inner", 1, 2);
                (7, "2 parts".to_string())
            })
        });
        assert_eq!(value, 7);
        let list = phases.list();
        let names: Vec<(&str, &str)> = list.iter().map(|phase| (phase.name.as_str(), phase.note.as_str())).collect();
        assert_eq!(names, [("inner", "2 parts"), ("outer", "")]);
        assert!(list[1].start <= list[0].start && list[1].seconds >= list[0].seconds);
        let told = told.lock().unwrap();
        let expected = [("outer", 0, 0), ("inner", 0, 0), ("inner", 1, 2)];
        assert!(told.iter().map(|(name, done, total)| (name.as_str(), *done, *total)).eq(expected));
    }

    #[test]
    fn the_driver_is_told_apart_from_everything_else() {
        let phases = Phases::default();
        for (name, seconds) in [("import", 1.0), ("driver", 2.0), ("compile", 4.0), ("context", 8.0), ("first run", 16.0)] {
            phases.record(name, String::new(), Instant::now(), seconds);
        }
        let start = Start::of(&phases.list());
        assert_eq!((start, start.total()), (Start { opening: 10.0, rest: 21.0 }, 31.0));
    }
}
