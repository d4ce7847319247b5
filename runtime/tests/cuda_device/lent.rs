//! Runs on tensors and streams of the caller's, and what many of them leave behind.

use super::plan::{WIDTH, check, input, longer, plan, turn, weight};
use eglu_ir::{DType, Tensor};
use eglu_runtime::{DeviceTensor, Executable, Stream, cuda::CudaExecutable};

fn load(launches: usize) -> Executable {
    Executable::new(Box::new(CudaExecutable::load(longer(launches), &weight, 0).unwrap()))
}

/// Memory for the one result, whose rows are written one after the other and viewed transposed. It holds NaN, so that what is not written
/// shows.
fn result(executable: &Executable, rows: usize) -> Vec<DeviceTensor> {
    let poison = vec![f32::NAN; rows * WIDTH as usize];
    vec![executable.to_device(&Tensor::from_slice(DType::F32, &[rows, WIDTH as usize], &poison).unwrap()).unwrap()]
}

fn checked(executable: &Executable, rows: usize, results: &[DeviceTensor]) {
    let written = executable.to_host(&results[0]).unwrap();
    let (rows_first, width) = (written.as_slice::<f32>(), WIDTH as usize);
    let data: Vec<f32> = (0..rows * width).map(|at| rows_first[at % rows * width + at / rows]).collect();
    check(rows, &Tensor::from_slice(DType::F32, &[width, rows], &data).unwrap());
}

#[test]
fn replays_follow_inputs_and_dims() {
    let Some(_turn) = turn() else { return };
    let executable = load(8);
    let inputs = [7, 7, 300].map(|rows| executable.to_device(&input(rows)).unwrap());
    let mut results = [7, 7, 300].map(|rows| result(&executable, rows));
    // Twice to have a graph, then moved inputs, other dims, moved results.
    for (i, &which) in [0, 0, 0, 1, 0, 2, 2, 2, 1, 1, 0].iter().enumerate() {
        let rows = if which == 2 { 300 } else { 7 };
        if i % 3 == 2 {
            results[which] = result(&executable, rows);
        }
        executable.run_on(Stream::DEFAULT, std::slice::from_ref(&inputs[which]), &results[which]).unwrap();
        executable.wait(Stream::DEFAULT).unwrap();
        checked(&executable, rows, &results[which]);
    }
}

#[test]
fn threads_share_executables_and_a_device() {
    let Some(_turn) = turn() else { return };
    let executables = [load(4), load(1)];
    std::thread::scope(|scope| {
        for thread in 0..4usize {
            let executable = &executables[thread % 2];
            scope.spawn(move || {
                let rows = 100 + thread;
                for _ in 0..20 {
                    check(rows, &executable.run(&[input(rows)]).unwrap()[0]);
                }
                // One stream for all: they take turns.
                let (there, results) = (executable.to_device(&input(rows)).unwrap(), result(executable, rows));
                for _ in 0..20 {
                    executable.run_on(Stream::DEFAULT, std::slice::from_ref(&there), &results).unwrap();
                }
                checked(executable, rows, &results);
            });
        }
    });
}

/// The memory of this process on the host, bytes.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

#[test]
fn ten_thousand_runs_of_changing_dims_leave_nothing_behind() {
    let Some(_turn) = turn() else { return };
    let (executable, gauge) = (load(2), CudaExecutable::load(plan(), &weight, 0).unwrap());
    let there = executable.to_device(&input(64)).unwrap();
    let results = result(&executable, 64);
    let run = |i: usize| {
        // Each three times in a row, so that graphs are made, too.
        let rows = 1 + (i / 3 * 7919 + i / 3 % 31) % 64;
        // SAFETY: both tensors have 64 rows, and the runs on the stream follow each other.
        let there = unsafe { DeviceTensor::borrow(DType::F32, &[rows, WIDTH as usize], there.address()) };
        executable.run_on(Stream::DEFAULT, &[there], &results).unwrap();
    };
    (0..1_000).for_each(run);
    executable.wait(Stream::DEFAULT).unwrap();
    let (host, device) = (resident(), gauge.free_bytes().unwrap());
    (0..10_000).for_each(run);
    executable.wait(Stream::DEFAULT).unwrap();
    let (grown, lost) = (resident() as i64 - host as i64, device as i64 - gauge.free_bytes().unwrap() as i64);
    eprintln!("{grown} bytes more on the host, {lost} on the device");
    assert!(grown < 8 << 20 && lost <= 0, "{grown} bytes more on the host, {lost} on the device");
}

/// A fault ends the process's use of the device, so it is made in a process of its own.
#[test]
fn after_a_fault_a_new_process_can_load_the_executable() {
    let Some(_turn) = turn() else { return };
    const CHILD: &str = "EGLU_TEST_FAULT";
    if std::env::var_os(CHILD).is_none() {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["lent::after_a_fault_a_new_process_can_load_the_executable", "--exact", "--nocapture"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
        let executable = load(0);
        for _ in 0..3 {
            check(4, &executable.run(&[input(4)]).unwrap()[0]);
        }
        return;
    }
    let mut stray = plan();
    stray.launches[1].entry = "stray".into();
    stray.launches[1].args.remove(1);
    let broken = Executable::new(Box::new(CudaExecutable::load(stray, &weight, 0).unwrap()));
    let (there, results) = (broken.to_device(&input(4)).unwrap(), result(&broken, 4));
    broken.run_on(Stream::DEFAULT, &[there], &results).unwrap();
    let error = broken.wait(Stream::DEFAULT).unwrap_err().to_string();
    assert!(error.contains("load the model in a new one"), "{error}");
    let lost = "the driver lets this process use device 0 no more";
    let again = broken.run(&[input(4)]).unwrap_err().to_string();
    assert!(again.contains(lost), "{again}");
    let anew = CudaExecutable::load(plan(), &weight, 0).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(anew.contains(lost), "{anew}");
}
