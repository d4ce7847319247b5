//! `docs/ops.md` is written from the tables; `UPDATE_EXPECT=1 cargo test -p eglu-ir --test documentation` writes it anew.

use eglu_ir::{
    OpCode,
    import::operators,
    ops::{Derivative, Lowering},
};
use std::{collections::BTreeMap, fmt::Write};

fn lowering(code: OpCode) -> &'static str {
    match code.lowering() {
        Lowering::View => "view",
        Lowering::Generator => "generator",
        Lowering::Pointwise => "pointwise",
        Lowering::Kernel => "kernel",
    }
}

/// The gradient by each operand, where it is an expression; else in a word.
fn derivative(code: OpCode) -> String {
    match code.derivative() {
        Derivative::Expression(each) => each.iter().map(|text| format!("`{text}`")).collect::<Vec<_>>().join(", "),
        Derivative::Rule => "yes".into(),
        Derivative::Zero => "zero".into(),
        Derivative::None(why) => format!("none: {why}"),
    }
}

/// A cell of a table: bars end cells.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").split_whitespace().collect::<Vec<_>>().join(" ")
}

fn document() -> String {
    let mut text = String::from(
        "# Ops\n\nWritten from the tables in `ir/src/ops` and `ir/src/import/aten` by \
         `UPDATE_EXPECT=1 cargo test -p eglu-ir --test documentation`; do not edit.\n\n## Rows\n\nWhat a graph consists of. \
         Operands marked `?` may be absent, `*` is a list. A view costs nothing, a generator is computed from indices where it is read, a \
         pointwise op runs by the element with its neighbours, and a kernel is a launch of its own. Derivatives of elementwise ops are \
         expressions, one for each operand, of the gradient `g` by the result `out`; `(number? y a b)` is `a` where y is a number and `b` \
         where it is a tensor. Those of other ops are rules of the `autodiff` pass, or zero where nothing depends on an operand but in steps.\n\n\
         | op | operands | attributes | lowering | meaning | derivative |\n|---|---|---|---|---|---|\n",
    );
    for code in OpCode::all() {
        let fields = code.fields().iter().zip(code.kinds()).map(|(name, kind)| format!("{name}: {kind:?}"));
        let _ = writeln!(
            text,
            "| `{}` | {} | {} | {} | {} | {} |",
            code.name(),
            cell(&code.operands().join(", ")),
            cell(&fields.collect::<Vec<_>>().join(", ")),
            lowering(code),
            cell(code.doc()),
            cell(&derivative(code))
        );
    }
    let operators = operators();
    let _ = write!(
        text,
        "\n## Operators of PyTorch\n\n{} operators import, with their in-place forms (`[_]`) functionalised. Parameters that an archive leaves \
         out take the defaults shown, those of PyTorch's schemas.\n\n| operator | parameters |\n|---|---|\n",
        operators.len()
    );
    let mut rows: BTreeMap<(String, String), bool> = BTreeMap::new();
    for operator in &operators {
        *rows.entry((operator.target.clone(), operator.parameters.clone())).or_default() |= operator.has_in_place;
    }
    for ((target, parameters), in_place) in rows {
        let shown = match target.rsplit_once('.') {
            Some((name, overload)) if in_place => format!("{name}[_].{overload}"),
            _ => target,
        };
        let _ = writeln!(text, "| `{shown}` | {} |", cell(&parameters));
    }
    text
}

#[test]
fn the_list_of_ops_is_up_to_date() {
    expect_test::expect_file!["../../docs/ops.md"].assert_eq(&document());
}
