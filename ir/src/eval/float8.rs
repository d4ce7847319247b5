//! The 8-bit floats, with the rounding and overflow of `c10/util/Float8_*.h`: to nearest, ties to even. Of PyTorch 2.15, E4M3FN saturates,
//! infinities too; the others do not.

use crate::DType;

/// What tells the signed formats apart.
struct Format {
    mantissa: u32,
    bias: i32,
    /// Code of the largest finite magnitude.
    max: u32,
    /// Code of what lies beyond it: infinity, or NaN where the format has none.
    overflow: u8,
    /// "fnuz": one NaN, 0x80, and no negative zero.
    fnuz: bool,
}

fn format(dtype: DType) -> Option<Format> {
    Some(match dtype {
        DType::F8E4M3Fn => Format { mantissa: 3, bias: 7, max: 0x7e, overflow: 0x7f, fnuz: false },
        DType::F8E5M2 => Format { mantissa: 2, bias: 15, max: 0x7b, overflow: 0x7c, fnuz: false },
        DType::F8E4M3FnUz => Format { mantissa: 3, bias: 8, max: 0x7f, overflow: 0x80, fnuz: true },
        DType::F8E5M2FnUz => Format { mantissa: 2, bias: 16, max: 0x7f, overflow: 0x80, fnuz: true },
        _ => return None,
    })
}

impl Format {
    fn decode(&self, code: u8) -> f32 {
        let magnitude = u32::from(code & 0x7f);
        if self.fnuz && code == 0x80 || magnitude > self.max && self.overflow != magnitude as u8 {
            return f32::NAN;
        }
        let sign = if code & 0x80 != 0 { -1.0 } else { 1.0 };
        if magnitude > self.max {
            // E5M2 keeps infinity just past its largest value; E4M3FN has NaN there.
            return if self.mantissa == 2 { sign * f32::INFINITY } else { f32::NAN };
        }
        let (exponent, fraction) = (magnitude >> self.mantissa, magnitude & ((1 << self.mantissa) - 1));
        let (significand, power) = match exponent {
            0 => (fraction, 1),
            e => (fraction | 1 << self.mantissa, e as i32),
        };
        sign * significand as f32 * 2f32.powi(power - self.bias - self.mantissa as i32)
    }

    fn encode(&self, value: f32) -> u8 {
        let (sign, magnitude) = ((value.to_bits() >> 24) as u8 & 0x80, value.to_bits() & 0x7fff_ffff);
        if value.is_nan() {
            return if self.fnuz { 0x80 } else { sign | 0x7f };
        }
        let exponent = (magnitude >> 23) as i32 - 127;
        let code = if exponent < 1 - self.bias {
            let unit = 2f64.powi(1 - self.bias - self.mantissa as i32);
            (f64::from(value.abs()) / unit).round_ties_even() as u32
        } else {
            let dropped = 23 - self.mantissa;
            let odd = magnitude >> dropped & 1;
            ((magnitude + (1 << (dropped - 1)) - 1 + odd) >> dropped) - (((127 - self.bias) as u32) << self.mantissa)
        };
        match code {
            0 if self.fnuz => 0,
            code if code <= self.max => sign | code as u8,
            _ if self.fnuz => self.overflow,
            _ if self.mantissa == 3 => sign | self.max as u8,
            _ => sign | self.overflow,
        }
    }
}

/// Values of all codes of an 8-bit float dtype.
pub(super) fn decode_table(dtype: DType) -> [f32; 256] {
    match format(dtype) {
        Some(format) => std::array::from_fn(|code| format.decode(code as u8)),
        None => std::array::from_fn(|code| e8m0_decode(code as u8)),
    }
}

/// The rounding function of an 8-bit float dtype.
pub(super) fn encoder(dtype: DType) -> impl Fn(f32) -> u8 {
    let format = format(dtype);
    move |value| match &format {
        Some(format) => format.encode(value),
        None => e8m0_encode(value),
    }
}

/// A power of two; code 0 is 2⁻¹²⁷ and 255 is NaN.
fn e8m0_decode(code: u8) -> f32 {
    match code {
        0 => f32::from_bits(0x0040_0000),
        255 => f32::NAN,
        code => f32::from_bits(u32::from(code) << 23),
    }
}

/// As `fp8e8m0fnu_from_fp32_value`: the exponent, rounded to nearest by the first fraction bit; the sign is dropped. A tie rounds up
/// unless the value is subnormal, because the implied bit counts as the last place.
fn e8m0_encode(value: f32) -> u8 {
    let bits = value.to_bits();
    let exponent = (bits >> 23) as u8;
    if exponent == 255 {
        return 255;
    }
    let (half, rest) = (bits & 0x40_0000 != 0, bits & 0x3f_ffff != 0);
    exponent + u8::from(half && (rest || exponent > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIGNED: [DType; 4] = [DType::F8E4M3Fn, DType::F8E5M2, DType::F8E4M3FnUz, DType::F8E5M2FnUz];

    #[test]
    fn known_values() {
        let check = |dtype, code: u8, value: f32| {
            assert_eq!(decode_table(dtype)[code as usize], value, "{dtype} {code:#x}");
            assert_eq!(encoder(dtype)(value), code, "{dtype} {value}");
        };
        check(DType::F8E4M3Fn, 0x7e, 448.0);
        check(DType::F8E4M3Fn, 0x01, 2f32.powi(-9));
        check(DType::F8E4M3Fn, 0xb8, -1.0);
        check(DType::F8E5M2, 0x7b, 57344.0);
        check(DType::F8E5M2, 0xfc, f32::NEG_INFINITY);
        check(DType::F8E4M3FnUz, 0x7f, 240.0);
        check(DType::F8E5M2FnUz, 0x7f, 57344.0);
        check(DType::F8E8M0, 127, 1.0);
        check(DType::F8E8M0, 0, 2f32.powi(-127));
    }

    #[test]
    fn overflow_saturates_in_e4m3fn_alone() {
        assert_eq!(encoder(DType::F8E4M3Fn)(465.0), 0x7e);
        assert_eq!(encoder(DType::F8E4M3Fn)(f32::NEG_INFINITY), 0xfe);
        assert_eq!(encoder(DType::F8E4M3Fn)(f32::NAN), 0x7f);
        assert_eq!(encoder(DType::F8E5M2)(61440.0), 0x7c);
        assert_eq!(encoder(DType::F8E4M3FnUz)(-248.0), 0x80);
        assert_eq!(encoder(DType::F8E8M0)(1.5), 128);
        assert_eq!(encoder(DType::F8E8M0)(1.49), 127);
    }

    #[test]
    fn every_code_round_trips() {
        for dtype in SIGNED {
            for (code, value) in decode_table(dtype).into_iter().enumerate() {
                let again = encoder(dtype)(value);
                assert!(value.is_nan() || again == code as u8, "{dtype} {code:#x} is {value}, back {again:#x}");
            }
        }
    }

    #[test]
    fn rounds_to_the_nearest_code_and_ties_to_even() {
        for dtype in SIGNED {
            let table = decode_table(dtype);
            let mut finite: Vec<u8> = (0..0x80).filter(|&c| table[c as usize].is_finite()).collect();
            finite.sort_by(|&a, &b| table[a as usize].total_cmp(&table[b as usize]));
            for pair in finite.windows(2) {
                let (low, high) = (table[pair[0] as usize], table[pair[1] as usize]);
                let middle = (low + high) / 2.0;
                let even = if pair[0] % 2 == 0 { pair[0] } else { pair[1] };
                assert_eq!(encoder(dtype)(middle), even, "{dtype} {middle}");
                assert_eq!(encoder(dtype)(middle.next_down()), pair[0], "{dtype} below {middle}");
                assert_eq!(encoder(dtype)(middle.next_up()), pair[1], "{dtype} above {middle}");
            }
        }
    }
}
