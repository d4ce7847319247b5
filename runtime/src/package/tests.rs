//! Packages written, read, damaged, moved and run.

use super::*;
use crate::{
    Device, Executable, RuntimeError,
    cuda::{Cubin, DeviceFacts},
};
use eglu_codegen::{
    Plan,
    cuda::{Target as Gpu, emit},
    lower,
};
use eglu_ir::{DType, Tensor, text, weights::Weights};
use std::{
    fs::{self, File},
    io::{Read, Write},
    path::{Path, PathBuf},
};
use zip::{ZipArchive, ZipWriter, write::SimpleFileOptions};

/// `y = softmax(x · w + c)` for x of [s0, 4], with weights tied under two names.
fn plan() -> Plan {
    let graph = text::parse(
        "graph \"toy\"\nsymbol s0: 0..=1000\n%x: f32[s0, 4] = input\n%w: f32[4, 4] = weight \"layer.w\"\n\
         %v: f32[4, 4] = weight \"tied.w\"\n%c: f32[4] = constant [0.5, -1, 2, nan]\n%p: f32[s0, 4] = matmul(%x, %w)\n\
         %q: f32[s0, 4] = add(%p, %c)\n%r: f32[s0, 4] = matmul(%q, %v)\n%y: f32[s0, 4] = softmax(%r) {dim=1, log=false, dtype=f32}\noutput %y\n",
    );
    lower(&graph.unwrap()).unwrap()
}

fn weights() -> Weights {
    let mut weights = Weights::default();
    let values: Vec<f32> = (0..16).map(|i| i as f32 / 8.0).collect();
    for name in ["layer.w", "tied.w"] {
        weights.insert(name, Tensor::from_slice(DType::F32, &[4, 4], &values).unwrap());
    }
    weights
}

fn gpu(arch: &str) -> Target {
    let plan = emit(&plan(), Gpu::named(arch).unwrap()).unwrap();
    let cubins = plan.modules.iter().map(|module| Cubin { image: module.name.as_bytes().into(), log: "".into() }).collect();
    Target::Cuda { arch: arch.into(), compiler: "NVRTC 0.0".into(), plan, cubins }
}

fn draft() -> Draft {
    let targets = vec![Target::Cpu(plan()), gpu("sm_80"), gpu("sm_90a")];
    Draft {
        programs: vec![Program { name: "toy".into(), targets, weights: weights(), absent: Default::default(), bounds: vec![] }],
        refer_to_weights: false,
    }
}

fn written(folder: &Path) -> PathBuf {
    let path = folder.join("toy.eglu");
    draft().write(&path).unwrap();
    path
}

/// The package with one entry changed, or dropped, and sealed again.
fn changed(path: &Path, name: &str, change: impl Fn(String) -> Option<String>) {
    let mut archive = ZipArchive::new(File::open(path).unwrap()).unwrap();
    let mut writer = ZipWriter::new(std::io::Cursor::new(vec![]));
    for i in 0..archive.len() {
        let mut entry = archive.by_index(i).unwrap();
        let entry_name = entry.name().unwrap().into_owned();
        let mut data = vec![];
        entry.read_to_end(&mut data).unwrap();
        if entry_name == name {
            let before = String::from_utf8(data).unwrap();
            let after = change(before.clone());
            assert_ne!(after.as_ref(), Some(&before), "{name} must change");
            let Some(after) = after else { continue };
            data = after.into_bytes();
        }
        writer.start_file(&*entry_name, SimpleFileOptions::default()).unwrap();
        writer.write_all(&data).unwrap();
    }
    writer.set_raw_comment(seal::blank().into()).unwrap();
    let mut file = writer.finish().unwrap().into_inner();
    let digest = seal::digest(&file);
    let at = file.len() - digest.len();
    file[at..].copy_from_slice(digest.as_bytes());
    fs::write(path, file).unwrap();
}

fn error(path: &Path) -> String {
    let loaded = Package::open(path).map_err(RuntimeError::from).and_then(|package| {
        let program = package.program(None)?;
        program.load(&program.weights()?, &Device::Cpu)
    });
    loaded.unwrap_err().to_string()
}

fn facts(capability: (u32, u32), shared_bytes: u32) -> DeviceFacts {
    DeviceFacts {
        ordinal: 0,
        name: "Some GPU".into(),
        capability,
        multiprocessors: 100,
        shared_bytes,
        l2_bytes: 1 << 25,
        memory_bytes: 1 << 34,
        clock_hz: 1e9,
        memory_clock_hz: 1e9,
        memory_bus_bits: 256,
    }
}

#[test]
fn runs_as_the_plan_it_was_made_of() {
    let folder = tempfile::tempdir().unwrap();
    let package = Package::open(&written(folder.path())).unwrap();
    let program = package.program(None).unwrap();
    assert_eq!(program.inputs().collect::<Vec<_>>(), [("x", "f32[s0, 4]")]);
    assert_eq!(program.outputs(), ["f32[s0, 4]"]);
    assert_eq!(program.targets().map(|(arch, _)| arch).collect::<Vec<_>>(), ["cpu", "sm_80", "sm_90a"]);
    let loaded = program.load(&program.weights().unwrap(), &Device::Cpu).unwrap();
    let direct = Executable::load(plan(), &weights(), &Device::Cpu).unwrap();
    for rows in [0, 3, 100] {
        let values: Vec<f32> = (0..rows * 4).map(|i| (i as f32).sin()).collect();
        let x = [Tensor::from_slice(DType::F32, &[rows, 4], &values).unwrap()];
        let (got, want) = (loaded.run(&x).unwrap(), direct.run(&x).unwrap());
        assert_eq!(got[0].bytes(), want[0].bytes(), "{rows} rows");
    }
}

#[test]
fn tied_weights_are_stored_once_and_read_from_the_map() {
    let folder = tempfile::tempdir().unwrap();
    let package = Package::open(&written(folder.path())).unwrap();
    assert_eq!(package.archive.names().filter(|name| name.starts_with("weights/")).count(), 1);
    let stored = package.program(None).unwrap().weights().unwrap();
    for name in ["layer.w", "tied.w"] {
        assert_eq!(stored.get(name).unwrap(), weights().get(name).unwrap());
        let (archive, file, _) = stored.placement(name).unwrap();
        assert!(archive.stored_at(archive.entry(file).unwrap()).unwrap().is_multiple_of(64));
    }
}

#[test]
fn cuda_plans_come_back_as_they_were() {
    let folder = tempfile::tempdir().unwrap();
    let package = Package::open(&written(folder.path())).unwrap();
    let program = package.program(None).unwrap();
    for (capability, arch) in [((9, 0), "sm_90a"), ((8, 0), "sm_80"), ((8, 9), "sm_80")] {
        let (plan, cubins) = program.for_device(&facts(capability, 200 << 10)).unwrap();
        let Target::Cuda { plan: want, cubins: want_cubins, .. } = gpu(arch) else { unreachable!() };
        assert_eq!((&plan.launches, &plan.scratch, &cubins), (&want.launches, &want.scratch, &want_cubins));
        assert_eq!(format!("{:?}", plan.plan), format!("{:?}", want.plan), "NaN constants and symbols included");
    }
}

#[test]
fn a_foreign_device_is_told_what_there_is_and_what_it_needs() {
    let folder = tempfile::tempdir().unwrap();
    let package = Package::open(&written(folder.path())).unwrap();
    let program = package.program(None).unwrap();
    let error = program.for_device(&facts((10, 0), 200 << 10)).unwrap_err().to_string();
    for part in ["toy.eglu", "cpu, sm_80, sm_90a", "Some GPU", "--arch sm_100"] {
        assert!(error.contains(part), "{part} in {error}");
    }
    // Code for sm_80 runs on sm_89, unless it takes more shared memory than that has.
    let mut draft = draft();
    let Target::Cuda { plan, .. } = &mut draft.programs[0].targets[1] else { unreachable!() };
    plan.launches[0].shared_bytes = 150 << 10;
    draft.write(package.path()).unwrap();
    let package = Package::open(package.path()).unwrap();
    let program = package.program(None).unwrap();
    assert!(program.for_device(&facts((8, 0), 163 << 10)).is_ok());
    let error = program.for_device(&facts((8, 9), 99 << 10)).unwrap_err().to_string();
    assert!(error.contains("--arch sm_89"), "{error}");
}

#[test]
fn equal_drafts_give_equal_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let (one, two) = (folder.path().join("one.eglu"), folder.path().join("two.eglu"));
    for path in [&one, &two] {
        draft().write(path).unwrap();
    }
    assert_eq!(fs::read(one).unwrap(), fs::read(two).unwrap());
}

#[test]
fn damage_is_noticed_wherever_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = written(folder.path());
    let whole = fs::read(&path).unwrap();
    for at in (0..whole.len()).step_by(7).chain(whole.len() - seal::LENGTH - 60..whole.len()) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x10;
        fs::write(&path, &damaged).unwrap();
        let error = Package::open(&path).unwrap_err();
        assert!(matches!(error, PackageError::Damaged { .. } | PackageError::Unsealed { .. }), "byte {at}: {error}");
    }
    for at in (0..whole.len()).step_by(101) {
        fs::write(&path, &whole[..at]).unwrap();
        assert!(matches!(Package::open(&path), Err(PackageError::Unsealed { .. } | PackageError::Open { .. })), "cut at {at}");
    }
    fs::write(&path, [whole.as_slice(), b"\n"].concat()).unwrap();
    assert!(matches!(Package::open(&path), Err(PackageError::Unsealed { .. })), "a byte too many");
}

#[test]
fn damage_is_said_to_be_where_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = written(folder.path());
    let mut bytes = fs::read(&path).unwrap();
    // A byte of the weights, which are stored as they are.
    let value = 1.875f32.to_le_bytes();
    let at = bytes.windows(4).rposition(|window| window == value).unwrap();
    bytes[at] ^= 1;
    fs::write(&path, bytes).unwrap();
    let error = error(&path);
    assert!(error.contains("`weights/0`") && error.contains("copy it again"), "{error}");
}

#[test]
fn newer_versions_and_other_contents_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let case = |name: &str, change: &dyn Fn(String) -> Option<String>| {
        let path = written(folder.path());
        changed(&path, name, change);
        error(&path)
    };
    let error = case("manifest.json", &|text| {
        Some(text.replace("\"version\": 1", "\"version\": 2").replace("\"programs\"", "\"models\""))
    });
    assert!(error.contains("version 2") && error.contains("reads version 1") && error.contains("written by eglu"), "{error}");
    let error = case("manifest.json", &|text| Some(text.replace("eglu-package", "other")));
    assert!(error.contains("is that of no `eglu-package`"), "{error}");
    let error = case("manifest.json", &|_| None);
    assert!(error.contains("has no `manifest.json`"), "{error}");
    let error = case("manifest.json", &|text| Some(text.replace("plans/0.cpu", "plans/7.cpu")));
    assert!(error.contains("`plans/7.cpu.json`"), "{error}");
    let error = case("plans/0.cpu.json", &|text| Some(text.replacen("\"buffer\": 0", "\"buffer\": 70", 1)));
    assert!(error.contains("`plans/0.cpu.json`") && error.contains("is 70"), "{error}");
    let error = case("plans/0.cpu.json", &|text| Some(text.replacen("\"softmax\"", "\"softmix\"", 1)));
    assert!(error.contains("softmix"), "{error}");
    let error = case("plans/0.cpu.json", &|text| Some(text.replacen("\"dim\": 1", "\"dim\": 5", 1)));
    assert!(error.contains("step `y` (softmax)"), "{error}");
}

#[test]
fn what_fails_to_be_written_leaves_what_was_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = written(folder.path());
    let before = fs::read(&path).unwrap();
    let mut bad = draft();
    bad.programs[0].weights = Weights::default();
    let error = bad.write(&path).unwrap_err().to_string();
    assert!(error.contains("`layer.w`"), "{error}");
    assert_eq!((fs::read(&path).unwrap(), fs::read_dir(folder.path()).unwrap().count()), (before, 1));
    let error = draft().write(&folder.path().join("absent/toy.eglu")).unwrap_err().to_string();
    assert!(error.contains("absent") && error.contains("folder exists"), "{error}");
}

#[test]
fn programs_are_asked_for_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("two.eglu");
    let mut draft = draft();
    draft.programs.push(Program { name: "other".into(), ..draft.programs[0].clone() });
    draft.write(&path).unwrap();
    let package = Package::open(&path).unwrap();
    assert_eq!(package.archive.names().filter(|name| name.ends_with(".cubin")).count() % 2, 0);
    assert_eq!(package.program(Some("other")).unwrap().name(), "other");
    let error = package.program(None).unwrap_err().to_string();
    assert!(error.contains("toy, other") && error.contains("--program"), "{error}");
    let error = package.program(Some("third")).unwrap_err().to_string();
    assert!(error.contains("`third`") && error.contains("toy, other"), "{error}");
}

#[test]
fn weights_can_stay_in_the_archive() {
    let folder = tempfile::tempdir().unwrap();
    let (archive, package) = (folder.path().join("model.zip"), folder.path().join("toy.eglu"));
    let write = |scale: f32| {
        let mut writer = ZipWriter::new(File::create(&archive).unwrap());
        writer.start_file("storage", SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored)).unwrap();
        for i in 0..16 {
            writer.write_all(&(scale * i as f32).to_le_bytes()).unwrap();
        }
        writer.finish().unwrap();
    };
    write(1.0);
    let opened = std::sync::Arc::new(eglu_ir::archive::Archive::open(&archive).unwrap());
    let place = |strides: [i64; 2]| eglu_ir::weights::Placement {
        dtype: DType::F32,
        shape: vec![4, 4],
        strides: strides.into(),
        offset: 0,
    };
    let mut draft = draft();
    draft.refer_to_weights = true;
    let refused = draft.write(&package).unwrap_err().to_string();
    assert!(refused.contains("`layer.w`") && refused.contains("--refer-to-weights"), "{refused}");
    let weights = &mut draft.programs[0].weights;
    weights.insert_placed("layer.w", &opened, "storage", &place([1, 4])).unwrap();
    weights.insert_placed("tied.w", &opened, "storage", &place([4, 1])).unwrap();
    draft.write(&package).unwrap();
    let stored = |package: &Path| Package::open(package).unwrap().program(None).unwrap().weights();
    assert_eq!(stored(&package).unwrap().get("layer.w").unwrap().as_slice::<f32>()[..5], [0.0, 4.0, 8.0, 12.0, 1.0]);
    let away = folder.path().join("away");
    fs::create_dir(&away).unwrap();
    for name in ["model.zip", "toy.eglu"] {
        fs::rename(folder.path().join(name), away.join(name)).unwrap();
    }
    assert!(stored(&away.join("toy.eglu")).is_ok(), "both moved together");
    write(2.0);
    fs::copy(&archive, away.join("model.zip")).unwrap();
    let error = stored(&away.join("toy.eglu")).unwrap_err().to_string();
    assert!(error.contains("model.zip") && error.contains("another file"), "{error}");
    fs::remove_file(away.join("model.zip")).unwrap();
    let error = stored(&away.join("toy.eglu")).unwrap_err().to_string();
    assert!(error.contains("model.zip") && error.contains("put that file there"), "{error}");
}
