//! `eglu doctor`: what this machine has and lacks.

mod self_test;

use crate::{failure::Failure, progress::Progress, screen::show, table::Table};
use clap::Args;
use eglu_runtime::{
    Device, Phase, Phases, Start,
    cuda::{Finding, Probe, probe},
};
use self_test::{Passed, self_test};

/// Shows what this machine has and lacks for running fused models, and how to get it; then runs a small model on each device.
///
/// Looks for the CUDA driver, its devices, the run-time compiler NVRTC and the cache of compiled kernels. The CPU backend needs none of them.
/// The small model's result is compared with the reference evaluator's, and each phase from a cold start is timed: on a GPU the first time of
/// all compiles, later times take kernels from the cache.
#[derive(Debug, Args)]
pub struct Doctor {
    /// Only look, and run nothing
    #[arg(long)]
    no_run: bool,
}

impl Doctor {
    /// Runs the subcommand.
    pub fn run(self) -> Result<(), Failure> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let progress = Progress::new();
        let looked = Phases::default();
        let probe = looked.time("probe of driver, devices, NVRTC and cache", probe);
        let mut tests = Vec::new();
        if !self.no_run {
            for device in devices(&probe) {
                tests.push((device, self_test(device, &progress)));
            }
        }
        drop(progress);
        let works = probe.usable() && tests.iter().all(|(device, test)| *device == Device::Cpu || test.is_ok());
        let verdict = if works { "`--device cuda` works here" } else { "`--device cuda` does not work here; the CPU does" };
        show(&format!("cpu      {threads} threads\n{probe}\n{verdict}\n"))?;
        if !tests.is_empty() {
            show(&told(&looked.list(), &tests))?;
        }
        // What a GPU lacks is told above; the CPU needs nothing, so that its failure is one.
        match tests.into_iter().find(|(device, _)| *device == Device::Cpu) {
            Some((_, Err(failure))) => Err(failure),
            _ => Ok(()),
        }
    }
}

/// The host, and the GPUs that were found where kernels can be compiled.
fn devices(probe: &Probe) -> Vec<Device> {
    let gpus = probe.devices.iter().filter_map(|device| match device {
        Finding::Found(facts) if probe.usable() => Some(Device::Cuda(facts.ordinal)),
        _ => None,
    });
    std::iter::once(Device::Cpu).chain(gpus).collect()
}

/// What came of the self-tests, and a table of phases with a column for each device.
fn told(looked: &[Phase], tests: &[(Device, Result<Passed, Failure>)]) -> String {
    let mut text = String::from("\nself-test: a gated linear unit\n");
    let mut names: Vec<&str> = Vec::new();
    for (device, test) in tests {
        match test {
            Ok(passed) => {
                text += &format!("  {device}: correct, error {:.1e}\n", passed.error);
                for phase in &passed.phases {
                    if !names.contains(&phase.name.as_str()) {
                        names.push(&phase.name);
                    }
                }
            }
            Err(failure) => text += &format!("  {device}: failed\n{}", failure.render()),
        }
    }
    let passed: Vec<(String, &Passed)> =
        tests.iter().filter_map(|(device, test)| Some((device.to_string(), test.as_ref().ok()?))).collect();
    let mut table = Table::new(std::iter::once("cold start, ms").chain(passed.iter().map(|(device, _)| device.as_str())));
    let cell = |seconds: f64| format!("{:.3}", 1e3 * seconds);
    for phase in looked {
        table.row([phase.name.clone(), cell(phase.seconds)]);
    }
    // In the order of the device with most phases: a GPU goes through all that the host does.
    names.sort_by_key(|name| passed.iter().filter_map(|(_, test)| test.phases.iter().position(|p| p.name == *name)).max());
    for name in names {
        let of = |test: &Passed| test.phases.iter().find(|phase| phase.name == name).map_or(String::new(), |p| cell(p.seconds));
        table.row(std::iter::once(name.to_owned()).chain(passed.iter().map(|(_, test)| of(test))));
    }
    let starts: Vec<Start> = passed.iter().map(|(_, test)| Start::of(&test.phases)).collect();
    let mut sum = |name: &str, part: fn(&Start) -> f64| {
        table.row(std::iter::once(name.to_owned()).chain(starts.iter().map(|start| cell(part(start)))));
    };
    sum("in all", Start::total);
    sum("for the device to open", |start| start.opening);
    sum("for everything else", |start| start.rest);
    let notes = passed.iter().flat_map(|(device, test)| test.phases.iter().map(move |phase| (device, phase)));
    let notes: String = notes
        .filter(|(_, phase)| !phase.note.is_empty())
        .map(|(device, phase)| format!("  {device}: {}: {}\n", phase.name, phase.note))
        .collect();
    format!("{text}\n{table}{notes}")
}
