//! What a run does once it has run before: nothing but launches.

use super::{super::counting, *};

/// [`plan`] with its last launch made `more` times more, which changes nothing but their number.
pub(super) fn longer(more: usize) -> CudaPlan {
    let mut plan = plan();
    let last = plan.launches[2].clone();
    plan.launches.extend(std::iter::repeat_n(last, more));
    plan
}

#[test]
fn a_run_asks_nothing_and_makes_nothing() {
    let fake = device(1 << 20);
    let executable = load(&fake);
    assert!(executable.driver_calls().queries > 0, "loading asks");
    let runs: Vec<_> = [3, 5].map(x).into();
    let rounds = |n: usize| {
        for (x, bindings) in runs.iter().cycle().take(2 * n) {
            executable.run(std::slice::from_ref(x), bindings).unwrap();
        }
        (executable.driver_calls(), fake.state().holds())
    };
    // Once by single launches, once to make graphs.
    let warm = rounds(2);
    assert_eq!(rounds(5), warm);
    assert_eq!(fake.state().graphs, [2, 2 * 6, 0]);
}

#[test]
fn a_run_on_lent_memory_allocates_nothing_on_the_host_either() {
    let fake = device(1 << 20);
    let executable = Executable::new(Box::new(load_plan(&fake, longer(8)).unwrap()));
    let input = executable.to_device(&x(5).0).unwrap();
    let moved = executable.to_device(&x(5).0).unwrap();
    let blocks = executable.results(std::slice::from_ref(&input)).unwrap().blocks;
    let results: Vec<_> = blocks.iter().map(|&bytes| executable.empty(DType::U8, &[bytes as usize]).unwrap()).collect();
    let run = |input: &DeviceTensor| executable.run_on(fake.stream(1), std::slice::from_ref(input), &results).unwrap();
    (0..2).for_each(|_| run(&input));
    let made = counting::allocations();
    (0..10).for_each(|_| run(&input));
    assert_eq!(counting::allocations(), made, "at addresses that stay");
    for _ in 0..5 {
        run(&moved);
        run(&input);
    }
    assert_eq!(counting::allocations(), made, "at addresses that change");
    let [graphs, replays, updates] = fake.state().graphs;
    assert_eq!((graphs, replays), (1, 21), "the first run alone is launched kernel by kernel");
    assert_eq!(updates, 10, "one kernel reads the input");
}

/// Public bug reports of runtimes that leak are about exactly this: a new plan, graph or arena for each new shape.
#[test]
fn ten_thousand_runs_of_changing_dims_leave_nothing_behind() {
    let fake = device(1 << 20);
    let executable = Executable::new(Box::new(load_plan(&fake, longer(2)).unwrap()));
    let mut rows = (0..10_000usize).map(|i| 1 + (i * i * 7919 + i * 31) % 60);
    let mut run = |rows: usize| {
        let (host, _) = x(rows);
        check(rows, &executable.run(std::slice::from_ref(&host)).unwrap());
        let input = executable.to_device(&host).unwrap();
        let blocks = executable.results(std::slice::from_ref(&input)).unwrap().blocks;
        let results: Vec<_> = blocks.iter().map(|&bytes| executable.empty(DType::U8, &[bytes as usize]).unwrap()).collect();
        executable.run_on(fake.stream(1), &[input], &results).unwrap();
        counting::uncounted(|| fake.state().launched.clear());
        counting::uncounted(|| fake.state().launched_on.clear());
    };
    // Dims may come twice in a row, so that some have graphs: those kept at the end differ from those kept now.
    run(60);
    rows.by_ref().take(1_000).for_each(&mut run);
    let kept = || {
        let ((device, _), pinned) = fake.state().holds();
        (device, pinned)
    };
    let (before, host) = (kept(), counting::live_bytes());
    rows.for_each(&mut run);
    assert_eq!(kept(), before, "bytes on the device, and pinned");
    let grown = counting::live_bytes() - host;
    assert!(grown < 100_000, "{grown} bytes more on the host");
    let graphs = fake.state().graphs[0];
    assert!(graphs > 0, "some dims came again");
    let objects = fake.state().usage().1;
    assert!(objects < 100, "{objects} streams and graphs are alive, of {graphs} graphs made");
}

#[test]
fn where_nothing_can_be_captured_kernels_are_launched() {
    let fake = device(1 << 20);
    fake.state().no_capture = true;
    let executable = load(&fake);
    let (x, bindings) = x(4);
    for _ in 0..4 {
        check(4, &executable.run(std::slice::from_ref(&x), &bindings).unwrap());
    }
    assert_eq!(fake.state().graphs, [0, 0, 0]);
    assert_eq!(fake.state().launched.len(), 12);
}

#[test]
fn in_place_steps_give_the_same() {
    let fake = device(1 << 20);
    let mut plan = longer(0);
    // Nothing but z is asked for, so that it may take the place of y, and its scratch is gone.
    plan.plan.outputs.truncate(1);
    plan.launches.remove(1);
    plan.launches[1].args[1] = KernelArg::Pointer { memory: Memory::Buffer(2), offset: 0.into() };
    plan.scratch.clear();
    let executable = load_plan(&fake, plan).unwrap();
    let (x, bindings) = x(7);
    let z = executable.run(std::slice::from_ref(&x), &bindings).unwrap();
    let want: Vec<f32> =
        (0..28).map(|at| at % 7 * 4 + at / 7).map(|i| 2.0 * (i as f32 + [10.0, 20.0, 30.0, 40.0][i % 4])).collect();
    assert_eq!(z[0].as_slice::<f32>(), want);
    let report = Backend::memory(&executable, &bindings).unwrap();
    let place = |name: &str| report.tenants.iter().find(|tenant| tenant.name == name).map(|tenant| tenant.offset);
    assert_eq!(place("y"), place("z"), "{report}");
    assert!(report.peak < report.sum);
}
