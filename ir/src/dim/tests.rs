use super::*;

#[test]
fn equal_expressions_are_equal_dims() {
    let (s, t) = (Dim::symbol("s0"), Dim::symbol("s1"));
    assert_eq!((s.clone() + t.clone()) * s.clone(), s.clone() * t.clone() + s.clone() * s.clone());
    assert_eq!(s.clone() - s.clone(), Dim::Const(0));
    assert_eq!((Dim::from(2) * s.clone()).floor_div(&Dim::from(2)), s);
    assert_eq!((s.clone() * t.clone()).exact_div(&s), Some(t));
}

#[test]
fn division_takes_multiples_out() {
    let s = Dim::symbol("s");
    let even = s.clone() * Dim::from(2);
    assert_eq!((even.clone() + Dim::from(1)).floor_div(&Dim::from(2)), s);
    assert_eq!((even.clone() - Dim::from(1)).floor_div(&Dim::from(2)), s - Dim::from(1));
    assert_eq!((even + Dim::from(3)).rem(&Dim::from(2)), Dim::from(1));
}

#[test]
fn divisions_have_one_form() {
    let s = Dim::symbol("s");
    let eight = Dim::from(8);
    // How PyTorch writes the padding of a length to a multiple of 8.
    let padding = (-s.rem(&eight)).rem(&eight);
    let padded = s.clone() + padding;
    assert_eq!(padded, s.ceil_div(8) * eight.clone());
    assert_eq!(padded.floor_div(&eight), s.ceil_div(8));
    assert_eq!(-(-s.clone()).floor_div(&eight), s.ceil_div(8));
    assert_eq!(s.ceil_div(2).ceil_div(2), s.ceil_div(4));
    assert_eq!((s.clone() + Dim::from(15)).floor_div(&eight), s.ceil_div(8) + Dim::from(1));
    for value in [-17, -8, -1, 0, 1, 7, 8, 9, 100] {
        let bindings = Bindings::from([("s".into(), value)]);
        assert_eq!(padded.eval(&bindings), Ok((value + 7).div_euclid(8) * 8));
        assert_eq!((-s.clone()).rem(&eight).eval(&bindings), Ok((-value).rem_euclid(8)));
        assert_eq!((s.clone() - Dim::from(21)).floor_div(&eight).eval(&bindings), Ok((value - 21).div_euclid(8)));
    }
}

#[test]
fn expressions_that_explode_end_as_an_extent_that_nothing_holds() {
    let sum = (0..12).fold(Dim::from(0), |sum, i| sum + Dim::symbol(&format!("s{i}")));
    let power = (0..20).fold(Dim::from(1), |product, _| product * sum.clone());
    assert!(power.terms().len() <= SIZE);
    let nested = (0..100_000).fold(Dim::symbol("s"), |dim, _| (dim + Dim::from(1)).floor_div(&Dim::from(3)));
    assert_eq!(nested.eval(&Bindings::from([("s".into(), 7)])).map(|value| value > 1 << 40), Ok(true));
    let doubled = (0..100).fold(Dim::symbol("s"), |dim, _| Dim::max(&dim, &(dim.clone() + Dim::symbol("t")).rem(&dim)));
    assert!(doubled.to_string().len() < 64 * SIZE);
}

#[test]
fn evaluates_and_prints() {
    let dim = (Dim::symbol("s0") * Dim::from(2) + Dim::from(1)).floor_div(&Dim::from(3));
    let bindings = Bindings::from([("s0".into(), 7)]);
    assert_eq!(dim.eval(&bindings), Ok(5));
    assert_eq!(dim.to_string(), "floordiv(2*s0+1, 3)");
    assert!(Dim::symbol("s9").eval(&bindings).is_err());
}
