use super::*;

/// Numbers around `base` that f32 holds exactly.
fn row(len: usize, base: f64, step: f64) -> Vec<f64> {
    (0..len).map(|i| base + step * ((i * 37 % 101) as f64 - 50.0)).collect()
}

/// PyTorch 2.11's `native_layer_norm` with eps 1e-5 on a CPU: length, base and step of the row, bits of mean and reciprocal deviation.
const PYTORCH: [(usize, f64, f64, u32, u32); 8] = [
    (5, 1e5, 0.25, 0x47c3_4df3, 0x3e1a_9bdd),
    (8, 1e5, 0.25, 0x47c3_4ee4, 0x3e11_9db0),
    (77, 1e5, 0.0625, 0x47c3_4ffd, 0x3f0b_954d),
    (1000, 1e5, 0.0625, 0x47c3_5000, 0x3f0c_65cf),
    (4099, 3e4, 0.125, 0x46ea_5fff, 0x3e8c_7ac9),
    (1000, 0.0, 1e-20, 0x1af1_c8a0, 0x439e_1d28),
    (1000, 4097.25, 0.0, 0x4580_0a00, 0x439e_1d28),
    (300, -1e7, 3.0, 0xcb18_9681, 0x3c3b_4a1b),
];

#[test]
fn digits_are_those_of_pytorch() {
    for (len, base, step, mean, scale) in PYTORCH {
        let row: Vec<f32> = row(len, base, step).into_iter().map(|x| x as f32).collect();
        let got = standardization(&row, 1e-5);
        let want = (f32::from_bits(mean), f32::from_bits(scale));
        assert_eq!(got, want, "{len} numbers around {base} in steps of {step}");
    }
}

#[test]
fn digits_are_those_of_pytorch_in_f64() {
    for (len, mean, scale) in
        [(77, 0x40f8_69ff_e79e_79e7, 0x3ffa_2987_ae8c_34ad), (1000, 0x40f8_6a00_00da_740eu64, 0x3ffa_51c7_7f0f_5185u64)]
    {
        let row: Vec<f64> = (0..len).map(|i| 1e5 + 0.0625 * ((i * 37 % 101) as f64 - 50.0) / 3.0).collect();
        assert_eq!(standardization(&row, 1e-5), (f64::from_bits(mean), f64::from_bits(scale)), "{len}");
    }
}

#[test]
fn squares_out_of_range_are_summed_in_f64() {
    for (len, scale) in [(1000, 1e30f32), (5, 1e30), (1000, 1e20)] {
        let row: Vec<f32> = (0..len).map(|i| scale * ((i % 5) as f32 - 2.0)).collect();
        let (mean, deviation) = standardization(&row, 1e-5);
        let want = 1.0 / (2f32.sqrt() * scale);
        assert!(mean.abs() < scale * 1e-5 && (deviation / want - 1.0).abs() < 1e-6, "{mean} {deviation}, not 0 {want}");
    }
    assert!(standardization(&[1.0f32, f32::INFINITY, 2.0], 1e-5).1.is_nan());
    assert!(standardization(&[f32::NAN; 9], 1e-5).1.is_nan());
}

#[test]
fn short_rows_have_their_moments() {
    let (mean, scale) = standardization::<f32>(&[], 1.0);
    assert!(mean.is_nan() && scale.is_nan());
    assert_eq!(standardization(&[3.0f32], 0.25), (3.0, 2.0));
    assert_eq!(standardization(&[1.0f64, 3.0], 0.0), (2.0, 1.0));
}
