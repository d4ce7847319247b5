//! Tensor maps: the descriptors that kernels hand to the bulk copy engine, encoded by the driver.

use super::{CudaError, driver::Driver};
use cudarc::driver::sys::{
    CUtensorMap, CUtensorMapDataType, CUtensorMapFloatOOBfill, CUtensorMapInterleave, CUtensorMapL2promotion, CUtensorMapSwizzle,
};
use eglu_codegen::cuda::TensorMap;
use eglu_ir::{DType, Dim};
use std::{
    cell::{Cell, UnsafeCell},
    ffi::c_void,
};

/// One tensor map under one choice of dims. Boxed, for its address is a kernel parameter and must not move.
pub(super) struct Map {
    address: u64,
    dtype: CUtensorMapDataType,
    dims: Vec<u64>,
    strides: Vec<u64>,
    tile: Vec<u32>,
    fetch: CUtensorMapL2promotion,
    /// It was encoded before, so that only its address may have changed.
    made: Cell<bool>,
    encoded: Box<UnsafeCell<CUtensorMap>>,
}

impl Map {
    /// A map of memory at `start`, which is an address or relative to a base.
    pub(super) fn new(map: &TensorMap, start: u64, eval: impl Fn(&Dim) -> Result<i64, CudaError>) -> Result<Map, CudaError> {
        // A map has no empty dims; kernels read nothing where there is nothing.
        let dims = map.dims.iter().map(|dim| Ok(eval(dim)?.max(1) as u64)).collect::<Result<_, CudaError>>()?;
        let strides = map.strides.iter().map(|dim| Ok(eval(dim)? as u64)).collect::<Result<_, CudaError>>()?;
        let dtype = match map.dtype {
            DType::F16 => CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
            _ => CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        };
        let (address, tile) = (start.wrapping_add(eval(&map.offset)? as u64), map.tile.clone());
        let fetch = match map.follows {
            true => CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            false => CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_NONE,
        };
        let encoded = Box::new(UnsafeCell::new(CUtensorMap { opaque: [0; 16] }));
        Ok(Map { address, dtype, dims, strides, tile, fetch, made: Cell::new(false), encoded })
    }

    /// Encodes it for a base that lies at `base`, or for a fixed address with `base` 0.
    pub(super) fn encode(&self, driver: &Driver, base: u64) -> Result<(), CudaError> {
        let address = self.address.wrapping_add(base) as *mut c_void;
        if self.made.get() {
            // SAFETY: the map was encoded, and no other reference to it is alive.
            return unsafe { driver.cuTensorMapReplaceAddress(self.encoded.get(), address) }
                .map_err(|code| driver.error(format!("moving a tensor map to {address:p}"), code));
        }
        let steps = vec![1u32; self.dims.len()];
        // SAFETY: no other reference to the map is alive while the session makes its launches ready; the lists have `dims.len()` entries,
        // `strides` one fewer, as the call wants them.
        unsafe {
            driver.cuTensorMapEncodeTiled(
                self.encoded.get(),
                self.dtype,
                self.dims.len() as u32,
                address,
                self.dims.as_ptr(),
                self.strides.as_ptr(),
                self.tile.as_ptr(),
                steps.as_ptr(),
                CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                self.fetch,
                CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        }
        .map_err(|code| {
            let (dims, strides, tile) = (&self.dims, &self.strides, &self.tile);
            driver.error(format!("encoding a tensor map of extents {dims:?}, strides {strides:?} bytes, tile {tile:?}"), code)
        })?;
        self.made.set(true);
        Ok(())
    }

    /// Where the encoded map lies.
    pub(super) fn as_ptr(&self) -> *mut c_void {
        self.encoded.get().cast()
    }
}
