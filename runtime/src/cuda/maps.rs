//! Tensor maps: the descriptors that kernels hand to the bulk copy engine, encoded by the driver.

use super::{CudaError, driver::Driver};
use cudarc::driver::sys::{
    CUtensorMap, CUtensorMapDataType, CUtensorMapFloatOOBfill, CUtensorMapInterleave, CUtensorMapL2promotion, CUtensorMapSwizzle,
};
use eglu_codegen::cuda::TensorMap;
use eglu_ir::{DType, Dim};
use std::{cell::UnsafeCell, ffi::c_void};

/// One tensor map under one choice of dims. Boxed, for its address is a kernel parameter and must not move.
pub(super) struct Map {
    /// The address is relative to the arena's start.
    pub(super) in_arena: bool,
    address: u64,
    dtype: CUtensorMapDataType,
    dims: Vec<u64>,
    strides: Vec<u64>,
    tile: Vec<u32>,
    fetch: CUtensorMapL2promotion,
    encoded: Box<UnsafeCell<CUtensorMap>>,
}

impl Map {
    /// A map of memory at `place`: an address, and whether it is one in the arena.
    pub(super) fn new(
        map: &TensorMap,
        (start, in_arena): (u64, bool),
        eval: impl Fn(&Dim) -> Result<i64, CudaError>,
    ) -> Result<Map, CudaError> {
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
        Ok(Map { in_arena, address, dtype, dims, strides, tile, fetch, encoded })
    }

    /// Encodes it for an arena that starts at `base`, or for a fixed address with `base` 0.
    pub(super) fn encode(&self, driver: &Driver, base: u64) -> Result<(), CudaError> {
        let steps = vec![1u32; self.dims.len()];
        let address = self.address.wrapping_add(base) as *mut c_void;
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
        })
    }

    /// Where the encoded map lies.
    pub(super) fn as_ptr(&self) -> *mut c_void {
        self.encoded.get().cast()
    }
}
