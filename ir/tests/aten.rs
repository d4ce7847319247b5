//! Operators that no archive of the fixtures has, on values worked out by hand or with NumPy, by the table that archives go through.

use eglu_ir::{
    DType, Tensor,
    eval::{EvalOperand, eval_graph, eval_op},
    import::single::{Argument, call},
    ops::Cast,
    verify::verify,
};

fn t(shape: &[usize], values: &[f32]) -> Tensor {
    Tensor::from_slice(DType::F32, shape, values).unwrap()
}

fn ints(shape: &[usize], values: &[i64]) -> Tensor {
    Tensor::from_slice(DType::I64, shape, values).unwrap()
}

fn input(at: usize) -> Argument {
    Argument::Input(at)
}

fn list(values: &[i64]) -> Argument {
    Argument::Ints(values.to_vec())
}

/// The results of one operator.
fn run(target: &str, inputs: &[Tensor], arguments: &[(&str, Argument)]) -> Vec<Tensor> {
    let types: Vec<_> = inputs.iter().map(Tensor::ty).collect();
    let graph = call(target, &types, arguments).unwrap_or_else(|e| panic!("{target}: {e}"));
    verify(&graph).unwrap_or_else(|e| panic!("{target}: {e}"));
    eval_graph(&graph, &|_| None, inputs).unwrap_or_else(|e| panic!("{target}: {e}"))
}

#[track_caller]
fn same(got: &Tensor, shape: &[usize], want: &[f64]) {
    assert_eq!(got.shape(), shape);
    let cast = eval_op(&Cast { dtype: DType::F64 }.into(), &[EvalOperand::Tensor(got)], &Default::default()).unwrap();
    let got: &[f64] = cast[0].as_slice();
    let near = |(&x, &y): (&f64, &f64)| x == y || x.is_nan() && y.is_nan() || (x - y).abs() <= 2e-6 * y.abs().max(1e-3);
    assert!(got.len() == want.len() && got.iter().zip(want).all(near), "{got:?}, not {want:?}");
}

/// An elementwise operator of `self`.
#[track_caller]
fn unary(name: &str, x: &[f32], want: &[f64]) {
    same(&run(&format!("aten.{name}.default"), &[t(&[x.len()], x)], &[("self", input(0))])[0], &[x.len()], want);
}

#[test]
fn functions_of_one_operand() {
    unary("tan", &[0.5, -1.0], &[0.5463024898, -1.5574077247]);
    unary("asin", &[0.5, 2.0], &[std::f64::consts::FRAC_PI_6, f64::NAN]);
    unary("sinh", &[0.5], &[0.5210953055]);
    unary("asinh", &[-0.5], &[-0.4812118251]);
    unary("acosh", &[2.0], &[1.3169578969]);
    unary("atanh", &[0.5], &[0.5493061443]);
    unary("exp2", &[3.0], &[8.0]);
    unary("log10", &[1000.0], &[3.0]);
    unary("erfc", &[3.0], &[2.209049699858544e-5]);
    unary("lgamma", &[0.5, 5.0], &[0.5723649429, 3.1780538303]);
    unary("signbit", &[-0.0, 0.0, -3.0], &[1.0, 0.0, 1.0]);
    unary("frac", &[-1.5], &[-0.5]);
    unary("hardsigmoid", &[-4.0, 0.0, 1.5, 9.0], &[0.0, 0.5, 0.75, 1.0]);
    unary("hardswish", &[-4.0, 1.0], &[0.0, 0.6666666667]);
    unary("mish", &[1.0, -30.0], &[0.8650983882, -2.807286908e-12]);
    unary("log_sigmoid", &[-200.0, 0.0], &[-200.0, -std::f64::consts::LN_2]);
    unary("selu", &[1.0, -1.0], &[1.0507009874, -1.1113307378]);
    unary("relu6", &[-1.0, 3.0, 7.0, f32::NAN], &[0.0, 3.0, 6.0, f64::NAN]);
    unary("isneginf", &[f32::NEG_INFINITY, f32::INFINITY], &[1.0, 0.0]);
}

#[test]
fn functions_of_two_operands() {
    let binary = |target: &str, x: &[f32], y: &[f32], want: &[f64]| {
        let inputs = [t(&[x.len()], x), t(&[y.len()], y)];
        same(&run(target, &inputs, &[("self", input(0)), ("other", input(1))])[0], &[x.len()], want);
    };
    binary("aten.atan2.default", &[1.0, -1.0], &[-1.0, 0.0], &[2.3561944902, -std::f64::consts::FRAC_PI_2]);
    binary("aten.hypot.default", &[3.0, 1e30], &[4.0, 1e30], &[5.0, 1.414213562e30]);
    binary("aten.copysign.Tensor", &[3.0, -3.0], &[-0.0, 1.0], &[-3.0, 3.0]);
    binary("aten.fmax.default", &[f32::NAN, 1.0], &[2.0, f32::NAN], &[2.0, 1.0]);
    binary("aten.xlogy.Tensor", &[0.0, 2.0, 0.0], &[0.0, 3.0, f32::NAN], &[0.0, 2.1972245773, f64::NAN]);
    binary(
        "aten.logaddexp.default",
        &[1000.0, f32::NEG_INFINITY],
        &[1000.0, f32::NEG_INFINITY],
        &[1000.6931471806, f64::NEG_INFINITY],
    );
    binary("aten.logical_xor.default", &[0.0, 2.0, 3.0], &[5.0, 0.0, 1.0], &[1.0, 1.0, 0.0]);
    let shifted = run(
        "aten.__lshift__.Scalar",
        &[Tensor::from_slice(DType::I8, &[2], &[1i8, 3]).unwrap()],
        &[("self", input(0)), ("other", Argument::Int(7))],
    );
    same(&shifted[0], &[2], &[-128.0, -128.0]);
    let shifted = run(
        "aten.__rshift__.Tensor",
        &[ints(&[3], &[-8, 9, -1]), ints(&[3], &[1, 70, 99])],
        &[("self", input(0)), ("other", input(1))],
    );
    same(&shifted[0], &[3], &[-4.0, 0.0, -1.0]);
    let ends = [t(&[2], &[1.0, 2.0]), t(&[2], &[3.0, -2.0])];
    let lerp = [("self", input(0)), ("end", input(1)), ("weight", Argument::Float(0.75))];
    same(&run("aten.lerp.Scalar", &ends, &lerp)[0], &[2], &[2.5, -1.0]);
}

#[test]
fn selections() {
    let x = || t(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let one = |target: &str, arguments: &[(&str, Argument)]| {
        let arguments: Vec<_> = [("self", input(0))].into_iter().chain(arguments.iter().cloned()).collect();
        run(target, &[x()], &arguments).remove(0)
    };
    same(&one("aten.tril.default", &[]), &[2, 3], &[1.0, 0.0, 0.0, 4.0, 5.0, 0.0]);
    same(&one("aten.triu.default", &[("diagonal", Argument::Int(1))]), &[2, 3], &[0.0, 2.0, 3.0, 0.0, 0.0, 6.0]);
    same(&one("aten.diagonal.default", &[("offset", Argument::Int(1))]), &[2], &[2.0, 6.0]);
    same(
        &one("aten.diagonal.default", &[("dim1", Argument::Int(1)), ("dim2", Argument::Int(0)), ("offset", Argument::Int(-1))]),
        &[2],
        &[2.0, 6.0],
    );
    same(&one("aten.trace.default", &[]), &[], &[6.0]);
    same(&one("aten.roll.default", &[("shifts", list(&[1])), ("dims", list(&[1]))]), &[2, 3], &[3.0, 1.0, 2.0, 6.0, 4.0, 5.0]);
    same(&one("aten.roll.default", &[("shifts", list(&[-1]))]), &[2, 3], &[2.0, 3.0, 4.0, 5.0, 6.0, 1.0]);
    let windows = [("dimension", Argument::Int(1)), ("size", Argument::Int(2)), ("step", Argument::Int(1))];
    same(&one("aten.unfold.default", &windows), &[2, 2, 2], &[1.0, 2.0, 2.0, 3.0, 4.0, 5.0, 5.0, 6.0]);
    same(
        &one("aten.tile.default", &[("dims", list(&[2]))]),
        &[2, 6],
        &[1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 4.0, 5.0, 6.0],
    );
    same(
        &one("aten.movedim.int", &[("source", Argument::Int(0)), ("destination", Argument::Int(-1))]),
        &[3, 2],
        &[1.0, 4.0, 2.0, 5.0, 3.0, 6.0],
    );
    same(&one("aten.cumprod.default", &[("dim", Argument::Int(1))]), &[2, 3], &[1.0, 2.0, 6.0, 4.0, 20.0, 120.0]);
    let reflected = [("padding", list(&[2, 1]))];
    same(
        &one("aten.reflection_pad1d.default", &reflected),
        &[2, 6],
        &[3.0, 2.0, 1.0, 2.0, 3.0, 2.0, 6.0, 5.0, 4.0, 5.0, 6.0, 5.0],
    );
    let circular = [("pad", list(&[1, 1])), ("mode", Argument::Text("circular".into()))];
    same(&one("aten.pad.default", &circular), &[2, 5], &[3.0, 1.0, 2.0, 3.0, 1.0, 6.0, 4.0, 5.0, 6.0, 4.0]);
    let parts =
        run("aten.tensor_split.indices", &[x()], &[("self", input(0)), ("indices", list(&[1])), ("dim", Argument::Int(1))]);
    same(&parts[1], &[2, 2], &[2.0, 3.0, 5.0, 6.0]);
}

#[test]
fn writes_by_index_and_searches() {
    let index = ints(&[2], &[0, 0]);
    let inputs = [t(&[2, 2], &[1.0, 2.0, 3.0, 4.0]), index.clone(), t(&[2, 2], &[10.0, 20.0, 30.0, 40.0])];
    let add =
        [("self", input(0)), ("dim", Argument::Int(1)), ("index", input(1)), ("source", input(2)), ("alpha", Argument::Int(2))];
    same(&run("aten.index_add.default", &inputs, &add)[0], &[2, 2], &[61.0, 2.0, 143.0, 4.0]);
    let fill = [("self", input(0)), ("dim", Argument::Int(0)), ("index", input(1)), ("value", Argument::Int(7))];
    same(&run("aten.index_fill.int_Scalar", &inputs[..2], &fill)[0], &[2, 2], &[7.0, 7.0, 3.0, 4.0]);
    let inputs = [t(&[3], &[1.0, 2.0, 3.0]), ints(&[2], &[1, 1]), t(&[2], &[10.0, 20.0])];
    let mean = [
        ("self", input(0)),
        ("dim", Argument::Int(0)),
        ("index", input(1)),
        ("src", input(2)),
        ("reduce", Argument::Text("mean".into())),
        ("include_self", Argument::Bool(false)),
    ];
    same(&run("aten.scatter_reduce.two", &inputs, &mean)[0], &[3], &[1.0, 15.0, 3.0]);
    let places = [("sorted_sequence", input(0)), ("self", input(1))];
    let sorted = [t(&[4], &[1.0, 3.0, 3.0, 5.0]), t(&[3], &[3.0, 0.0, 9.0])];
    same(&run("aten.searchsorted.Tensor", &sorted, &places)[0], &[3], &[1.0, 0.0, 4.0]);
    let right = [("boundaries", input(0)), ("self", input(1)), ("right", Argument::Bool(true))];
    same(&run("aten.bucketize.Tensor", &sorted, &right)[0], &[3], &[3.0, 0.0, 4.0]);
    let hot = [("self", input(0)), ("num_classes", Argument::Int(3))];
    same(&run("aten.one_hot.default", &[ints(&[2], &[2, 0])], &hot)[0], &[2, 3], &[0.0, 0.0, 1.0, 1.0, 0.0, 0.0]);
}

#[test]
fn contractions_by_label() {
    let (a, b) = (t(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), t(&[3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]));
    let einsum = |equation: &str, inputs: &[Tensor], shape: &[usize], want: &[f64]| {
        let arguments =
            [("equation", Argument::Text(equation.into())), ("tensors", Argument::Inputs((0..inputs.len()).collect()))];
        same(&run("aten.einsum.default", inputs, &arguments)[0], shape, want);
    };
    einsum("ij,jk->ki", &[a.clone(), b.clone()], &[2, 2], &[22.0, 49.0, 28.0, 64.0]);
    einsum("ij,jk", &[a.clone(), b.clone()], &[2, 2], &[22.0, 28.0, 49.0, 64.0]);
    einsum("...j->...", std::slice::from_ref(&a), &[2], &[6.0, 15.0]);
    einsum("ij,ij->j", &[a.clone(), a.clone()], &[3], &[17.0, 29.0, 45.0]);
    einsum("i,j->ij", &[t(&[2], &[1.0, 2.0]), t(&[2], &[3.0, 4.0])], &[2, 2], &[3.0, 4.0, 6.0, 8.0]);
    einsum("ii->i", &[t(&[2, 2], &[1.0, 2.0, 3.0, 4.0])], &[2], &[1.0, 4.0]);
    einsum("ij,jk,k->i", &[a.clone(), b.clone(), t(&[2], &[1.0, -1.0])], &[2], &[-6.0, -15.0]);
    let dot = [("self", input(0)), ("other", input(1)), ("dims_self", list(&[1])), ("dims_other", list(&[0]))];
    same(&run("aten.tensordot.default", &[a.clone(), b.clone()], &dot)[0], &[2, 2], &[22.0, 28.0, 49.0, 64.0]);
    let mv = [("self", input(0)), ("vec", input(1))];
    same(&run("aten.mv.default", &[a, t(&[3], &[1.0, 0.0, -1.0])], &mv)[0], &[2], &[-2.0, -2.0]);
}

#[test]
fn norms_and_losses() {
    let x = t(&[1, 4], &[1.0, 2.0, 3.0, 6.0]);
    let groups = [("input", input(0)), ("num_groups", Argument::Int(2)), ("eps", Argument::Float(0.0))];
    same(&run("aten.group_norm.default", &[x], &groups)[0], &[1, 4], &[-1.0, 1.0, -1.0, 1.0]);
    let channels = [t(&[1, 2, 1], &[3.0, 5.0]), t(&[2], &[1.0, 1.0]), t(&[2], &[4.0, 16.0]), t(&[2], &[2.0, 3.0])];
    let eval = [
        ("input", input(0)),
        ("weight", input(3)),
        ("bias", Argument::None),
        ("running_mean", input(1)),
        ("running_var", input(2)),
        ("training", Argument::Bool(false)),
        ("momentum", Argument::Float(0.1)),
        ("eps", Argument::Float(0.0)),
        ("cudnn_enabled", Argument::Bool(false)),
    ];
    same(&run("aten.batch_norm.default", &channels, &eval)[0], &[1, 2, 1], &[2.0, 3.0]);
    let logits = t(&[2, 2], &[0.0, 0.0, 1.0, 3.0]);
    let target = t(&[2, 2], &[0.5, 0.5, 0.0, 1.0]);
    let loss = [("self", input(0)), ("target", input(1))];
    let want = (std::f64::consts::LN_2 + (1.0 + (-2f64).exp()).ln()) / 2.0;
    same(&run("aten.cross_entropy_loss.default", &[logits, target], &loss)[0], &[], &[want]);
    let nll = [t(&[2, 2], &[-1.0, -2.0, -3.0, -4.0]), ints(&[2], &[1, 0])];
    same(&run("aten.nll_loss_nd.default", &nll, &loss)[0], &[], &[2.5]);
    let pair = [t(&[2], &[1.0, 2.0]), t(&[2], &[3.0, 5.0])];
    same(&run("aten.mse_loss.default", &pair, &loss)[0], &[], &[6.5]);
}

#[test]
fn convolutions() {
    let image = t(&[1, 1, 4], &[1.0, 2.0, 3.0, 4.0]);
    let kernel = t(&[1, 1, 2], &[1.0, 10.0]);
    let given = [("input", input(0)), ("weight", input(1))];
    same(&run("aten.conv1d.default", &[image.clone(), kernel.clone()], &given)[0], &[1, 1, 3], &[21.0, 32.0, 43.0]);
    let strided: Vec<_> = given.iter().cloned().chain([("stride", list(&[2])), ("padding", list(&[1]))]).collect();
    same(&run("aten.conv1d.default", &[image.clone(), kernel.clone()], &strided)[0], &[1, 1, 3], &[10.0, 32.0, 4.0]);
    let named: Vec<_> = given.iter().cloned().chain([("padding", Argument::Text("same".into()))]).collect();
    same(&run("aten.conv1d.padding", &[image.clone(), kernel.clone()], &named)[0], &[1, 1, 4], &[21.0, 32.0, 43.0, 4.0]);
    let transposed: Vec<_> = given.iter().cloned().chain([("stride", list(&[2]))]).collect();
    let small = t(&[1, 1, 2], &[1.0, 2.0]);
    same(&run("aten.conv_transpose1d.default", &[small, kernel.clone()], &transposed)[0], &[1, 1, 4], &[1.0, 10.0, 2.0, 20.0]);
    // Two groups, a bias, and no batch.
    let inputs = [
        t(&[2, 2, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]),
        t(&[2, 1, 2, 2], &[1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 1.0]),
        t(&[2], &[0.5, -0.5]),
    ];
    let grouped = [("input", input(0)), ("weight", input(1)), ("bias", input(2)), ("groups", Argument::Int(2))];
    same(&run("aten.conv2d.default", &inputs, &grouped)[0], &[2, 1, 1], &[10.5, 12.5]);
    let backward = [
        ("grad_output", input(0)),
        ("input", input(1)),
        ("weight", input(2)),
        ("bias_sizes", list(&[1])),
        ("stride", list(&[1])),
        ("padding", list(&[0])),
        ("dilation", list(&[1])),
        ("transposed", Argument::Bool(false)),
        ("output_padding", list(&[0])),
        ("groups", Argument::Int(1)),
    ];
    let gradients = run("aten.convolution_backward.default", &[t(&[1, 1, 3], &[1.0, 0.0, 2.0]), image, kernel], &backward);
    same(&gradients[0], &[1, 1, 4], &[1.0, 10.0, 2.0, 20.0]);
    same(&gradients[1], &[1, 1, 2], &[7.0, 10.0]);
    same(&gradients[2], &[1], &[3.0]);
}

#[test]
fn grouped_products_of_columns() {
    let inputs = [t(&[2, 1, 2], &[1.0, 2.0, 3.0, 4.0]), t(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])];
    let offs = Tensor::from_slice(DType::I32, &[2], &[1i32, 3]).unwrap();
    let inputs = [inputs[0].clone(), inputs[1].clone(), offs];
    let arguments = [("self", input(0)), ("mat2", input(1)), ("offs", input(2))];
    same(&run("aten._grouped_mm.default", &inputs, &arguments)[0], &[1, 3], &[9.0, 26.0, 33.0]);
}

#[test]
fn creation() {
    let steps = [("start", Argument::Int(0)), ("end", Argument::Int(1)), ("steps", Argument::Int(5))];
    same(&run("aten.linspace.default", &[], &steps)[0], &[5], &[0.0, 0.25, 0.5, 0.75, 1.0]);
    same(
        &run("aten.eye.m", &[], &[("n", Argument::Int(2)), ("m", Argument::Int(3))])[0],
        &[2, 3],
        &[1.0, 0.0, 0.0, 0.0, 1.0, 0.0],
    );
}

/// A factor of 0 means that the operand is not read: its NaN does not count.
#[test]
fn factors_of_zero_leave_their_operand_out() {
    let nan = f32::NAN;
    let (a, b) = (t(&[1, 2], &[1.0, 2.0]), t(&[2, 1], &[3.0, 4.0]));
    let addmm = |x: f32, a: Tensor, beta: f64, alpha: f64| {
        let factors = [("beta", Argument::Float(beta)), ("alpha", Argument::Float(alpha))];
        let tensors = [("self", input(0)), ("mat1", input(1)), ("mat2", input(2))];
        let arguments: Vec<_> = tensors.into_iter().chain(factors).collect();
        run("aten.addmm.default", &[t(&[1, 1], &[x]), a, b.clone()], &arguments).remove(0)
    };
    same(&addmm(nan, a.clone(), 0.0, 1.0), &[1, 1], &[11.0]);
    same(&addmm(5.0, t(&[1, 2], &[nan, 2.0]), 1.0, 0.0), &[1, 1], &[5.0]);
    same(&addmm(5.0, a, 2.0, 0.5), &[1, 1], &[15.5]);
    let batched = [t(&[1, 1, 1], &[nan]), t(&[1, 1, 2], &[1.0, 2.0]), t(&[1, 2, 1], &[3.0, 4.0])];
    let arguments = [("self", input(0)), ("batch1", input(1)), ("batch2", input(2)), ("beta", Argument::Int(0))];
    same(&run("aten.baddbmm.default", &batched, &arguments)[0], &[1, 1, 1], &[11.0]);
    let vector = [t(&[1], &[nan]), t(&[1, 2], &[1.0, 2.0]), t(&[2], &[3.0, 4.0])];
    let arguments = [("self", input(0)), ("mat", input(1)), ("vec", input(2)), ("beta", Argument::Int(0))];
    same(&run("aten.addmv.default", &vector, &arguments)[0], &[1], &[11.0]);
}

/// The right side of `x[i] += v` is read before anything is written: positions that repeat are written once.
#[test]
fn repeated_positions_are_written_not_summed() {
    let put = |accumulate: bool| {
        let tensors = [t(&[3], &[1.0, 2.0, 3.0]), ints(&[2], &[-3, 0]), t(&[2], &[2.0, 2.0])];
        let arguments = [
            ("self", input(0)),
            ("indices", Argument::OptionalInputs(vec![Some(1)])),
            ("values", input(2)),
            ("accumulate", Argument::Bool(accumulate)),
        ];
        run("aten.index_put.default", &tensors, &arguments).remove(0)
    };
    same(&put(false), &[3], &[2.0, 2.0, 3.0]);
    same(&put(true), &[3], &[5.0, 2.0, 3.0]);
}
