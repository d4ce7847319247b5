//! What the environment can refuse: each refusal says what, where and what to do, and leaves nothing behind.

use super::*;
use crate::cuda::driver::Driver;

fn refused(fake: &Fake) -> RuntimeError {
    load_plan(fake, plan()).err().unwrap()
}

#[track_caller]
fn says(error: &impl std::fmt::Display, parts: &[&str]) {
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn a_driver_that_does_not_start_is_no_driver() {
    let fake = device(1 << 20);
    fake.state().init = Some(CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
    let error = Driver::with(Box::new(fake.clone())).err().unwrap();
    assert!(matches!(error, CudaError::NoDriver { .. }) && error.is_environment());
    says(&error, &["cuInit", "install NVIDIA's driver"]);
}

#[test]
fn a_driver_too_old_for_the_kernels_is_named_with_its_version() {
    let fake = device(1 << 20);
    fake.state().version = Some(12_040);
    for code in
        [CUresult::CUDA_ERROR_INVALID_IMAGE, CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU, CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION]
    {
        fake.state().load = Some(code);
        let error = refused(&fake);
        assert_eq!(error.fault(), Fault::Environment);
        says(&error, &["the kernels of `toy`", "CUDA 12.4", "update the driver"]);
        assert_eq!(fake.state().usage(), (0, 0));
    }
}

#[test]
fn memory_that_ends_while_kernels_are_loaded_is_an_error_after_which_all_is_well() {
    let fake = device(1 << 20);
    fake.state().load = Some(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    let error = refused(&fake);
    assert!(matches!(error, RuntimeError::Cuda(CudaError::OutOfMemory { .. })), "{error}");
    says(&error, &["the kernels of `toy`", "are free"]);
    assert_eq!(fake.state().usage(), (0, 0));
    fake.state().load = None;
    let (x, bindings) = x(3);
    check(3, &load(&fake).run(&[x], &bindings).unwrap());
}

#[test]
fn memory_that_ends_at_any_allocation_leaves_nothing() {
    let (x, bindings) = x(3);
    let whole = {
        let fake = device(1 << 20);
        load(&fake).run(std::slice::from_ref(&x), &bindings).unwrap();
        1 << 20
    };
    let mut outcomes = [0, 0];
    for total in (0..40_960).step_by(256).chain([whole]) {
        let fake = device(total);
        let run = load_plan(&fake, plan()).and_then(|executable| executable.run(std::slice::from_ref(&x), &bindings));
        match run {
            Ok(outputs) => check(3, &outputs),
            Err(error) => assert!(matches!(error, RuntimeError::Cuda(CudaError::OutOfMemory { .. })), "{error}"),
        }
        outcomes[usize::from(total == whole)] += 1;
        assert_eq!(fake.state().usage(), (0, 0), "with {total} bytes");
    }
    assert!(outcomes[0] > 0 && outcomes[1] == 1);
}

#[test]
fn a_kernel_that_is_missing_or_too_greedy_is_named() {
    let fake = device(1 << 20);
    fake.state().shared_limit = Some(32 << 10);
    let error = refused(&fake);
    says(&error, &["`copy`", "65536 bytes of shared memory"]);
    assert_eq!(fake.state().usage(), (0, 0));
}
