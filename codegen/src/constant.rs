//! Constants of a plan in JSON: dtype, shape and the bytes in hexadecimal, so that every bit survives.

use eglu_ir::{
    DType, Tensor,
    text::{from_hex, to_hex},
};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    dtype: DType,
    shape: Vec<usize>,
    bytes: String,
}

pub fn serialize<S: Serializer>(tensor: &Tensor, s: S) -> Result<S::Ok, S::Error> {
    Record { dtype: tensor.dtype(), shape: tensor.shape().to_vec(), bytes: to_hex(tensor.bytes()) }.serialize(s)
}

pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Tensor, D::Error> {
    let record = Record::deserialize(d)?;
    let bytes = from_hex(&record.bytes).ok_or_else(|| D::Error::custom("the bytes of a constant are not hexadecimal"))?;
    Tensor::from_bytes(record.dtype, &record.shape, &bytes).map_err(D::Error::custom)
}
